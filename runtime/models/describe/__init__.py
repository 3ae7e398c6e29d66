"""Descriptions of models for people: their layers, their families, who computes them."""
