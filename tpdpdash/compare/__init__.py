"""Prediction against measurement: validation on published or own runs, accuracy by source, residuals."""
