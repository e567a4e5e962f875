"""The model repository that the demo's nodes serve: one folder for each model, in Triton's layout."""
