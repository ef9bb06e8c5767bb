"""`kclient cluster features`: the levels of a cluster's features, shown and changed."""

from __future__ import annotations

from collections.abc import Sequence

from kclient.admin import FeatureUpdate, UpgradeType
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sheets import Sheet, sheet_of
from kclient.sync import Admin


def shown(admin: Admin) -> Sheet:
    """Each feature: the level in use, and those that a broker can do."""
    found = admin.describe_features()
    names = sorted({*found.finalized_features, *found.supported_features})
    rows = []
    for name in names:
        level, supported = found.finalized_features.get(name), found.supported_features.get(name)
        rows.append(
            {
                "feature": name,
                "level": 0 if level is None else level.max_version_level,
                "lowest": None if supported is None else supported.min_version,
                "highest": None if supported is None else supported.max_version,
            }
        )
    epoch = found.finalized_features_epoch
    title = f"{len(rows)} features" + ("" if epoch is None else f", epoch {epoch}")
    sheet = sheet_of(title, ["feature", "level", "lowest", "highest"], rows, "features")
    return sheet._replace(fields={"epoch": epoch, **sheet.fields})


def update(texts: Sequence[str], settings: dict[str, object], *, downgrade: bool, unsafe: bool, dry_run: bool) -> int:
    """Have features other levels (`NAME=LEVEL`), all or none."""
    kind = UpgradeType.UPGRADE
    if unsafe:
        kind = UpgradeType.UNSAFE_DOWNGRADE
    elif downgrade:
        kind = UpgradeType.SAFE_DOWNGRADE
    updates = {}
    for text in texts:
        name, equals, level = text.partition("=")
        if not (name and equals and level.isascii() and level.isdecimal()):
            raise UsageError(f"a feature is given as NAME=LEVEL, as in transaction.version=2, not {text!r}")
        if name in updates:
            raise UsageError(f"{name} is given twice")
        try:
            updates[name] = FeatureUpdate(int(level), kind)
        except ValueError as error:
            hint = "; give --downgrade" if level.strip("0") == "" and kind is UpgradeType.UPGRADE else ""
            raise UsageError(f"{text}: {error}{hint}") from None
    with Admin(settings) as admin:
        admin.update_features(updates, validate_only=dry_run)
    if dry_run:
        output.warn("nothing was changed: this is a dry run")
    output.note(f"{'could be' if dry_run else 'is'} in use: {', '.join(texts)}")
    return 0
