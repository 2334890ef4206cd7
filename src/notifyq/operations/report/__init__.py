"""`notifyq report`: statistics of the messages of some days, as a page or a picture."""

from notifyq.errors import ConfigurationError

try:
    from notifyq.operations.report.data import Report, gather
    from notifyq.operations.report.page import page
    from notifyq.operations.report.picture import picture
except ImportError as error:
    raise ConfigurationError(
        "the report needs more packages: pip install 'notifyq[report]'"
    ) from error

__all__ = ["Report", "gather", "page", "picture"]
