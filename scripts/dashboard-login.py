"""Log in to the dashboard on this machine, as a browser would: part of compose-smoke.sh.

usage: dashboard-login.py PASSWORD
"""

from __future__ import annotations

import re
import sys
from http.cookiejar import CookieJar
from urllib.error import HTTPError
from urllib.parse import urlencode, urljoin
from urllib.request import HTTPCookieProcessor, build_opener

BASE = "http://127.0.0.1:8080/"


def enter(password: str) -> tuple[str, str]:
    """Fill in the login form; return the address and the text of the page after it."""
    browser = build_opener(HTTPCookieProcessor(CookieJar()))
    with browser.open(BASE) as page:
        address, form = page.url, page.read().decode()
    assert 'type="password"' in form, f"{address} requires no password"
    action = re.search(r'<form method="post" action="([^"]+)" class="fields">', form)
    assert action, form
    hidden = dict(re.findall(r'<input type="(?:hidden|text)" name="(\w+)" value="([^"]*)"', form))
    sent = urlencode({**hidden, "password": password}).encode()
    browser.addheaders += [("Origin", BASE.rstrip("/"))]
    try:
        with browser.open(urljoin(address, action[1]), sent) as page:
            return page.url, page.read().decode()
    except HTTPError as error:
        return error.url or "", error.read().decode()


def main() -> None:
    """Check that a wrong password is refused, and that the right one shows the overview."""
    _, page = enter("not " + sys.argv[1])
    assert 'type="password"' in page, "a wrong password is accepted"
    _, page = enter(sys.argv[1])
    assert 'type="password"' not in page, page
    assert "Overview" in page, page


main()
