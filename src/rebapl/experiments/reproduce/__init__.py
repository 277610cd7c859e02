"""The paper's tables and figures, each by one name: `rebapl reproduce`."""
