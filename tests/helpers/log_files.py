"""Small files of every format that a log reads, and what they hold, in plain Python."""

import gzip
import math
import random

from tfctr.data import Avazu, Criteo, FeatureDeclaration, ParquetLog, TFRecordLog

AVAZU_HEADER = (
    "id,click,hour,C1,banner_pos,site_id,site_domain,site_category,app_id,app_domain,"
    "app_category,device_id,device_ip,device_model,device_type,device_conn_type,"
    "C14,C15,C16,C17,C18,C19,C20,C21"
)
CRITEO_LINE = "\t".join(["1", *["2"] * 13, *["0a"] * 26])
USER = [FeatureDeclaration("user")]
DECLARED = (
    FeatureDeclaration("user"),
    FeatureDeclaration("price", kind="dense", transform="log", missing=-0.5),
    FeatureDeclaration(
        "bucket", column="price", transform="bucketize", boundaries=(1, 5, 9)
    ),
    FeatureDeclaration("pair", columns=("left", "right")),
    FeatureDeclaration("city", kind="string"),
    FeatureDeclaration("items", kind="ids"),
    FeatureDeclaration("words", kind="strings", combiner="sum", table="city"),
)


def criteo_lines(num_lines=400, seed=0):
    chance = random.Random(seed)
    lines = []
    for _ in range(num_lines):
        numbers = [chance.choice(["", "-2", "0", str(chance.randrange(99))])] * 2
        numbers += [str(chance.randrange(10**6)) for _ in range(11)]
        ids = [chance.choice(["", f"{chance.randrange(2**32):08x}"]) for _ in range(26)]
        lines.append("\t".join([str(chance.randrange(2)), *numbers, *ids]))
    return lines


def criteo_oracle(lines):
    """The labels, numbers and ids of such lines."""
    fields = [line.split("\t") for line in lines]
    numbers = [[math.log1p(max(int(x or 0), 0)) for x in some[1:14]] for some in fields]
    ids = [[int(x, 16) if x else -1 for x in some[14:]] for some in fields]
    return [float(some[0]) for some in fields], numbers, ids


def avazu_lines(num_lines=400, seed=0):
    chance = random.Random(seed)
    lines = []
    for index in range(num_lines):
        ids = [str(10**18 + index), str(chance.randrange(2)), "14102100", "1005", "-1"]
        ids += [f"{chance.randrange(2**32):08x}" for _ in range(9)]
        ids += [str(chance.randrange(50)) for _ in range(10)]
        lines.append(",".join(ids))
    return lines


def rows(num_rows=400, seed=0):
    """Rows for `DECLARED`; None where there is no value."""
    chance = random.Random(seed)
    return [
        {
            "label": chance.randrange(2),
            "user": chance.choice([None, index, -index, 2**62 + index]),
            "price": chance.choice([None, -1.0, 0.5, 5.0, 7.25, 100.0]),
            "left": chance.randrange(9),
            "right": chance.randrange(9),
            "city": chance.choice([None, "Oslo", "Århus", ""]),
            "items": chance.choice([None, [], [3], [5, 3, -7]]),
            "words": chance.choice([None, [], ["a"], ["b", "ä", "a"]]),
        }
        for index in range(num_rows)
    ]


def write_lines(path, lines, ending="\n"):
    data = "".join(line + ending for line in lines).encode()
    path.write_bytes(gzip.compress(data) if path.suffix == ".gz" else data)
    return path


def write_parquet(path, some, row_group_size=50):
    import pyarrow as pa
    from pyarrow import parquet

    schema = pa.schema(
        {
            "label": pa.int8(),
            "user": pa.int64(),
            "price": pa.float64(),
            "left": pa.int32(),
            "right": pa.uint64(),
            "city": pa.string(),
            "items": pa.list_(pa.int64()),
            "words": pa.list_(pa.string()),
        }
    )
    table = pa.Table.from_pylist(some, schema)
    parquet.write_table(table, path, row_group_size=row_group_size)
    return path


def example_bytes(row):
    import tensorflow as tf

    features = {}
    for name, value in row.items():
        values = [] if value is None else value if isinstance(value, list) else [value]
        if not values:
            continue
        if isinstance(values[0], str):
            texts = [text.encode() for text in values]
            kinds = {"bytes_list": tf.train.BytesList(value=texts)}
        elif isinstance(values[0], float):
            kinds = {"float_list": tf.train.FloatList(value=values)}
        else:
            kinds = {"int64_list": tf.train.Int64List(value=values)}
        features[name] = tf.train.Feature(**kinds)
    features = tf.train.Features(feature=features)
    return tf.train.Example(features=features).SerializeToString()


# A row that has all columns.
WHOLE = {
    "label": 1,
    "user": 5,
    "price": 2.0,
    "left": 1,
    "right": 2,
    "city": "Rom",
    "items": [4],
    "words": ["c"],
}


def write_records(path, some):
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(path)) as writer:
        for row in some:
            writer.write(row if isinstance(row, bytes) else example_bytes(row))
    return path


def open_small(kind, directory, **options):
    """Returns a log of 400 examples in several files."""
    options = {"shuffle_rows": 100, **options}
    if kind == "criteo":
        lines = criteo_lines()
        write_lines(directory / "day_10", lines[150:])
        write_lines(directory / "day_2.gz", lines[:150])
        return Criteo(directory, **options)
    if kind == "avazu":
        lines = [AVAZU_HEADER, *avazu_lines()]
        return Avazu(write_lines(directory / "train.gz", lines), **options)
    some = [WHOLE, *rows(399)]
    if kind == "parquet":
        write_parquet(directory / "a.parquet", some[:170])
        write_parquet(directory / "b.parquet", some[170:])
        return ParquetLog(directory, DECLARED, **options)
    write_records(directory / "a.tfrecord", some[:170])
    write_records(directory / "b.tfrecord", some[170:])
    return TFRecordLog(directory, DECLARED, **options)


def whole(log, split="train", **options):
    """Returns all examples of a split, as one batch."""
    (batch,) = log.batches(split, log.num_examples(split), **options)
    return batch
