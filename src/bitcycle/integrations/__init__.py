"""Precision schedules inside other people's trainers; each module needs the package it is for."""
