"""scipy matrices and scikit-learn: a pipeline with any vectoriser, options compared by cross-validation.

python examples/scipy_matrices.py
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from sklearn.feature_extraction.text import HashingVectorizer
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline

from dslide import SlideClassifier


def planted(rows: int, labels: int, seed: int) -> tuple[sp.csr_matrix, sp.csr_matrix]:
    """Rows of two labels each; label i has features 2 i and 2 i + 1."""
    random = np.random.default_rng(seed)
    truth = sp.csr_matrix((np.ones(2 * rows), (np.repeat(np.arange(rows), 2), random.integers(0, labels, 2 * rows))))
    truth.resize(rows, labels)
    truth.data[:] = 1
    x = sp.kron(truth, np.array([[0.5, 0.5]])).tocsr()
    return x + sp.random(rows, 2 * labels, 0.01, random_state=seed) * 0.3, truth


def main() -> None:
    x, y = planted(rows=1500, labels=50, seed=1)
    search = GridSearchCV(SlideClassifier(epochs=4, threads=1), {"hidden": [(16,), (32,)]}, cv=2).fit(x, y)
    x_test, y_test = planted(rows=300, labels=50, seed=2)
    print(f"best options {search.best_params_}, precision {search.best_estimator_.score(x_test, y_test):.2f}")
    columns, _ = search.best_estimator_.predict_topk(x_test[:1], k=2)
    print(f"labels of the first row: {sorted(y_test[0].indices.tolist())}, predicted: {sorted(columns[0].tolist())}")

    texts = ["good film", "fine film", "bad plot", "poor plot"] * 50
    classes = ["good", "good", "bad", "bad"] * 50
    model = make_pipeline(HashingVectorizer(n_features=2**10), SlideClassifier(epochs=5, threads=1)).fit(texts, classes)
    print("a poor film is", model.predict(["a poor plot"])[0])


if __name__ == "__main__":
    main()
