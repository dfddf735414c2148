"""What "claim once" costs and keeps, in our ledgers and in other stores."""
