"""`script/spark_api.py` on small trees: whatever private thing of Spark's is planted is found, with its place."""

from pathlib import Path

import pytest

pytest.importorskip("pyspark", reason="PySpark is not installed")

from script import spark_api

LISTENER = """
from pyspark.sql.streaming import StreamingQueryListener

class Mine(StreamingQueryListener):
    @property
    def _jlistener(self): ...
"""

SOURCE = """
from pyspark.sql.datasource import DataSource

class Mine(DataSource):
    def __init__(self):
        self._own = self.options
"""


def findings(root: Path, text: str) -> list[str]:
    file = root / "src" / "penstock" / "planted.py"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return [str(one) for one in spark_api.findings(root)]


@pytest.mark.parametrize(
    "text",
    [
        "frame._jdf.queryExecution()",
        "context = frame.sparkSession.sparkContext\ncontext._jsc.sc().isStopped()",
        "from pyspark import SparkContext\nSparkContext._active_spark_context = None",
        "writer._df",
        "getattr(frame, '_jdf')",
        "import operator\noperator.attrgetter('_jvm')(spark)",
        "udf._judf_placeholder = None",
        LISTENER,
        "import pyspark.sql.classic.dataframe",
        "from pyspark import worker",
        "from pyspark.sql.connect.session import SparkSession",
        "def late():\n    from pyspark.sql.streaming._internal import anything",
        "from pyspark.sql.functions import _invoke_function",
        "gateway.jvm.org.apache.spark.sql.catalyst.plans.logical.Join",
        "gateway.jvm.PythonSQLUtils.explainString(plan)",
    ],
)
def test_private_api_of_spark_is_found_wherever_it_is_used(text: str, tmp_path: Path) -> None:
    found = findings(tmp_path, f"x = 1\n{text}\n")
    assert len(found) == 1, found
    assert found[0].startswith("src/penstock/planted.py:")
    assert spark_api.main(tmp_path) == 1


@pytest.mark.parametrize(
    "text",
    [
        SOURCE,
        "from typing import NamedTuple\nclass Pair(NamedTuple):\n    a: int\nPair(1)._replace(a=2)",
        "class Mine:\n    def __init__(self):\n        self._gateway = 1",
        "context = gateway.jvm.org.apache.spark.SparkContext.getOrCreate().hadoopConfiguration()",
        "from pyspark.java_gateway import launch_gateway",
    ],
)
def test_names_of_our_own_and_public_ones_pass(text: str, tmp_path: Path) -> None:
    assert findings(tmp_path, text) == []
    assert spark_api.main(tmp_path) == 0


def test_this_tree_passes(capsys: pytest.CaptureFixture[str]) -> None:
    assert spark_api.main(Path(spark_api.__file__).parents[1]) == 0
    assert capsys.readouterr().out == "spark: public API alone\n"


def test_a_text_of_spark_s_that_is_gone_is_found() -> None:
    root, plan = Path(spark_api.__file__).parents[1], "execution/QueryExecution"
    given = {
        "== Analyzed Logical Plan ==": ("execution/NoSuchClass", "a reason"),
        "numRowsDroppedByNobody": (plan, "another"),
    }
    assert [*spark_api.texts_gone(root, given)] == [
        "'== Analyzed Logical Plan ==' is not in Spark's class execution/NoSuchClass any more: a reason",
        "'numRowsDroppedByNobody' is not used any more: take it from spark_api.py",
        f"'numRowsDroppedByNobody' is not in Spark's class {plan} any more: another",
    ]


def test_every_exception_is_used_and_has_a_reason() -> None:
    sources = "".join(file.read_text() for file in Path("src/penstock").rglob("*.py"))
    for module, reason in spark_api.UNDOCUMENTED.items():
        package, _, name = module.rpartition(".")
        assert f"from {module} import" in sources or f"from {package} import {name}" in sources, module
        assert len(reason) > 20
