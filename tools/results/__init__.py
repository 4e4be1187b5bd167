"""Makes the pages and pictures of results/ from results/data, and parts of README and docs."""
