"""Deep search as commands: ask a question, play many, train the executor, look at what it learnt, give it back.

`cli_search.py` prints what these modules do. The team itself is `teams/search/`, its rounds on disk `data/rounds.py`.
"""
