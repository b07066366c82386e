"""Mathematical answers: read from text (`reader`), compared (`equivalence`), or given to math-verify (`worker`)."""
