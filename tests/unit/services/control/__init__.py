"""Tests of the control service: API, dashboard, alerts, metrics."""
