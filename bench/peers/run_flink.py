"""Flink SQL: a changelog in files, answers discarded. FOLDER VIEW QUERY SUM STREAM."""

import json
import sys
from pathlib import Path

import pandas as pd
from pyflink.table import EnvironmentSettings, TableEnvironment
from timing import measured, tell

folder, view, query, column, stream = sys.argv[1:6]
TABLES = {
    "orders": {
        "id": "BIGINT",
        "customer": "INT",
        "quantity": "INT",
        "amount": "DECIMAL(12, 2)",
    },
    "customers": {"id": "INT", "region": "STRING"},
}
ANSWERS = {
    "filter": "id BIGINT, amount DECIMAL(12, 2)",
    "group_sum": "customer INT, s DECIMAL(38, 2), n BIGINT",
    "join": "id BIGINT, amount DECIMAL(12, 2), region STRING",
}


def written(name: str) -> Path:
    """Write the changelog of a table."""
    columns = list(TABLES[name])
    parts = [pd.read_parquet(f"{folder}/{name}_first.parquet")[columns].assign(sign=1)]
    if stream == "all":
        parts.append(pd.read_parquet(f"{folder}/{name}_changes.parquet")[[*columns, "sign"]])
    path = Path(folder) / f"{name}_{stream}.jsonl"
    with path.open("w") as file:
        for row in pd.concat(parts).to_dict(orient="records"):
            added = row.pop("sign") > 0
            image = row | ({"amount": str(row["amount"])} if "amount" in row else {})
            change = {"before": None, "after": image, "op": "c"}
            if not added:
                change = {"before": image, "after": None, "op": "d"}
            file.write(json.dumps(change) + "\n")
    return path


env = TableEnvironment.create(EnvironmentSettings.in_streaming_mode())
env.get_config().set("parallelism.default", "1")  # the order of a row's changes is kept
for table, types in TABLES.items():
    listed = ", ".join(f"{n} {t}" for n, t in types.items())
    env.execute_sql(
        f"CREATE TABLE {table} ({listed}) WITH ('connector' = 'filesystem',"
        f" 'path' = '{written(table)}', 'format' = 'debezium-json')"
    )
env.execute_sql(f"CREATE TABLE nowhere ({ANSWERS[view]}) WITH ('connector' = 'blackhole')")
text = query.replace("GROUP BY 1", "GROUP BY customer")
with measured():
    env.execute_sql(f"INSERT INTO nowhere {text}").wait()
found = (0, 0)
if stream == "all":  # run once more for the answer
    for last in env.execute_sql(f"SELECT count(*), sum({column}) FROM ({text})").collect():
        found = tuple(last)
tell(*found)
