"""Examples that `--help` of each command shows, by the words after `penstock`."""

from typing import Any

from rich.markup import escape

EXAMPLES: dict[str, tuple[str, ...]] = {
    "worker": ("penstock worker --data /var/lib/penstock", "penstock worker --store s3://bucket/prefix --shard 0"),
    "send": (
        "penstock send access.log --source logs --stream web1",
        "penstock send orders.jsonl --source orders --stream import --end",
    ),
    "run": (
        "penstock run app.yaml",
        "penstock run app.yaml --dashboard-port 7180",
        "penstock run counts.py --sink file:counts --available-now",
    ),
    "check": (
        "penstock check app.yaml",
        "penstock check app.yaml --json",
        "penstock check app.yaml --master spark://master.example.com:7077",
    ),
    "explain": ("penstock explain app.yaml", "penstock explain counts.py per_shop --json"),
    "infer": ("penstock infer orders", "penstock infer orders --codec csv --header"),
    "connectors": ("penstock connectors", "penstock connectors http-server --json"),
    "schema": ("penstock schema > penstock.schema.json", "penstock schema --api > penstock.openapi.json"),
    "init": ("penstock init house", "penstock init --list"),
    "doctor": ("penstock doctor", "penstock doctor --data /var/lib/penstock --json"),
    "status": ("penstock status", "penstock status --watch", "penstock status --json | jq .blockages"),
    "top": ("penstock top", "penstock top --worker https://worker.example.com:7102"),
    "dashboard": ("penstock dashboard", "penstock dashboard --worker https://worker.example.com:7102 --port 8000"),
    "tail": ("penstock tail orders -f --where 'total > 100'", "penstock tail per_minute/out -n 3 --json"),
    "apply": ("penstock apply app.yaml", "penstock apply app.yaml --prune --yes"),
    "stop": ("penstock stop", "penstock stop --no-wait"),
    "pause": ("penstock pause orders", "penstock pause orders --stream north"),
    "resume": ("penstock resume orders", "penstock resume orders --stream '#12'"),
    "log-level": ("penstock log-level debug",),
    "new connector": ("penstock new connector my-queue",),
    "segment list": ("penstock segment list", "penstock segment list connector/orders/ --json"),
    "segment info": ("penstock segment info orders",),
    "segment create": ("penstock segment create orders --quota 1GiB",),
    "segment append": (
        "penstock segment append orders one two",
        "penstock segment append orders --writer import < orders.txt",
    ),
    "segment cat": (
        "penstock segment cat pipeline/counts/out --follow",
        "penstock segment cat connector/orders/0 --full",
    ),
    "segment seal": ("penstock segment seal orders",),
    "segment truncate": ("penstock segment truncate orders 4096",),
    "segment delete": ("penstock segment delete orders",),
    "segment verify": ("penstock segment verify --data /var/lib/penstock",),
    "source end": ("penstock source end orders",),
    "source watermark": ("penstock source watermark orders 2026-01-31T12:00:00Z --stream north",),
    "pipeline list": ("penstock pipeline list", "penstock pipeline list --json"),
    "pipeline reset": ("penstock pipeline reset per-shop",),
    "pipeline fork": ("penstock pipeline fork per-shop per-shop-2",),
    "pipeline drop": ("penstock pipeline drop per-shop --outputs",),
    "pipeline bisect": ("penstock pipeline bisect per-shop", "penstock pipeline bisect per-shop shop.py --bury"),
    "sink add": ("penstock sink add per-shop file:results", "penstock sink add per-shop sqlite:shop.db?table=totals"),
    "sink list": ("penstock sink list", "penstock sink list --json"),
    "sink ddl": ("penstock sink ddl totals", "penstock sink ddl per-shop/totals | sqlite3 shop.db"),
    "sink rewind": ("penstock sink rewind totals", "penstock sink rewind totals --accept-gap"),
    "sink remove": ("penstock sink remove per-shop totals",),
    "sink types": ("penstock sink types", "penstock sink types --json"),
    "epoch list": ("penstock epoch list", "penstock epoch list per-shop --json"),
    "epoch retry": ("penstock epoch retry per-shop",),
    "epoch park": ("penstock epoch park per-shop 12 --sink totals",),
    "dead-letters list": ("penstock dead-letters list per-shop", "penstock dead-letters list per-shop --port late"),
    "dead-letters show": ("penstock dead-letters show per-shop 4096",),
    "dead-letters replay": (
        "penstock dead-letters replay per-shop",
        "penstock dead-letters replay per-shop --port late",
        "penstock dead-letters replay per-shop --at 0 --at 4096",
    ),
    "dead-letters bury": ("penstock dead-letters bury per-shop --at connector/orders/0@4096 --reason 'no amount'",),
    "dead-letters buried": ("penstock dead-letters buried per-shop",),
    "access add": (
        "penstock access add grafana --role read > grafana.token",
        "penstock access add shop --role write --prefix orders --quota 10GiB",
    ),
    "access list": ("penstock access list",),
    "access revoke": ("penstock access revoke grafana",),
    "access rotate": ("penstock access rotate",),
    "backup": ("penstock backup /mnt/backups --keep 7", "penstock backup /mnt/backups --verify"),
    "restore": ("penstock restore /mnt/backups --data new-data",),
    "store copy": ("penstock store copy penstock-data s3://bucket/prefix",),
    "store verify": ("penstock store verify s3://bucket/prefix",),
    "cluster status": ("penstock cluster status", "penstock cluster status --worker a.example.com:7102 --json"),
    "cluster drain": ("penstock cluster drain worker-2",),
    "cluster move": ("penstock cluster move 3 worker-2",),
    "cluster rebalance": ("penstock cluster rebalance",),
    "conformance source": (
        "penstock conformance source -- ./my-program {address}",
        "penstock conformance source --listen 127.0.0.1:7200 --json",
    ),
    "upgrade": ("penstock upgrade --check",),
}


def add_examples(command: Any, path: str) -> None:
    """To a command, or to all commands of a group."""
    for name, one in getattr(command, "commands", {}).items():
        add_examples(one, f"{path} {name}")
    if path in EXAMPLES:
        command.epilog = "\n\n".join(["[bold]Examples[/]", *map(escape, EXAMPLES[path])])
