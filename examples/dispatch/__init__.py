"""Dispatch of a food-delivery round: route planning, delivery times, their data and their models."""
