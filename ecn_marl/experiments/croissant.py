"""Croissant metadata of an offline dataset: what machine-learning catalogues read.

The format is MLCommons Croissant 1.0 (https://docs.mlcommons.org/croissant/docs/croissant-spec.html):
JSON-LD that names the files, and every column of every table with its type.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ecn_marl.experiments.datasets import Dataset

FILE = "croissant.json"

_CONTEXT: dict[str, Any] = {
    "@language": "en",
    "@vocab": "https://schema.org/",
    "cr": "http://mlcommons.org/croissant/",
    "dct": "http://purl.org/dc/terms/",
    "rai": "http://mlcommons.org/croissant/RAI/",
    "sc": "https://schema.org/",
    "citeAs": "cr:citeAs",
    "column": "cr:column",
    "conformsTo": "dct:conformsTo",
    "data": {"@id": "cr:data", "@type": "@json"},
    "dataType": {"@id": "cr:dataType", "@type": "@vocab"},
    "examples": {"@id": "cr:examples", "@type": "@json"},
    "extract": "cr:extract",
    "field": "cr:field",
    "fileObject": "cr:fileObject",
    "fileProperty": "cr:fileProperty",
    "fileSet": "cr:fileSet",
    "format": "cr:format",
    "includes": "cr:includes",
    "isLiveDataset": "cr:isLiveDataset",
    "jsonPath": "cr:jsonPath",
    "key": "cr:key",
    "md5": "cr:md5",
    "parentField": "cr:parentField",
    "path": "cr:path",
    "recordSet": "cr:recordSet",
    "references": "cr:references",
    "regex": "cr:regex",
    "repeated": "cr:repeated",
    "replace": "cr:replace",
    "samplingRate": "cr:samplingRate",
    "separator": "cr:separator",
    "source": "cr:source",
    "subField": "cr:subField",
    "transform": "cr:transform",
}
"""The context that the specification gives; readers warn about any other."""

_ENCODING = {"parquet": "application/x-parquet", "csv": "text/csv"}

_WHOLE = ("seed", "episode", "interval")
_TEXT = ("policy", "agent")
_FLAG = ("terminated", "truncated")


def metadata(dataset: Dataset) -> dict[str, Any]:
    """The metadata of a dataset, JSON-LD; paths are relative to its folder."""
    tables, facts = dataset.tables, dataset.facts
    named = ", ".join(dataset.policies)
    return {
        "@context": _CONTEXT,
        "@type": "sc:Dataset",
        "conformsTo": "http://mlcommons.org/croissant/1.0",
        "name": f"ecn-marl-{facts['scenario']}",
        "description": (
            f"Observations, actions and rewards of {len(facts['agents'])} agents in the scenario "
            f"{facts['scenario']} of ecn_marl: {facts['episodes']} episodes of each of {named}, "
            f"{facts['interval_us']:g} µs an interval, training seed {facts['seed']}, random "
            f"actions with probability {facts['epsilon']:g}."
        ),
        "version": "1.0.0",
        "distribution": [_files(name, tables.suffix) for name in tables.names],
        "recordSet": [_records(name, tables.columns[name]) for name in tables.names],
    }


def _files(table: str, suffix: str) -> dict[str, Any]:
    return {
        "@type": "cr:FileSet",
        "@id": f"{table}-files",
        "name": f"{table}-files",
        "encodingFormat": _ENCODING[suffix],
        "includes": f"{table}/*.{suffix}",
    }


def _records(table: str, columns: dict[str, Any]) -> dict[str, Any]:
    return {
        "@type": "cr:RecordSet",
        "@id": table,
        "name": table,
        "field": [
            {
                "@type": "cr:Field",
                "@id": f"{table}/{column}",
                "name": column,
                "dataType": _type(column),
                "source": {
                    "fileSet": {"@id": f"{table}-files"},
                    "extract": {"column": column},
                },
            }
            for column in columns
        ],
    }


def _type(column: str) -> str:
    """Type of a column in the words of schema.org."""
    for names, kind in ((_WHOLE, "sc:Integer"), (_TEXT, "sc:Text"), (_FLAG, "sc:Boolean")):
        if column in names:
            return kind
    return "sc:Float"
