"""What a coordinator knows, in one file of the store: `state.sqlite`."""
