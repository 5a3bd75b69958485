"""Certificates: gains, intervals, smoothing, error bounds."""
