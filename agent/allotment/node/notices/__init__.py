"""What the agent says happened, for the objects that a person would look at."""
