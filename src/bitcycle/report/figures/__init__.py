"""One file per picture: its data as frozen dataclasses, then matplotlib and plotly drawings."""
