"""Everything for Kubernetes: the chart, what it renders, images, dashboard, alerts, and a linter for manifests."""
