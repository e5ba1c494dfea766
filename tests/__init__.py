"""Tests: without servers (unit, simulation), on real ones (integration, browser), of the whole (acceptance)."""
