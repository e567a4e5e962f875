"""The model repository for nodes with GPUs: one folder for each model, in Triton's layout."""
