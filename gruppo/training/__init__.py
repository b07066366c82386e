"""Training: the policies that learn, the cold start and the reinforcement learning loop."""
