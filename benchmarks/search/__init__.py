"""The search on a GPU without a GPU: rehearsals and replays on simulated devices, timelines, small budgets."""
