"""The page's routes, and who is led there."""

from functools import partial

from quart import Response, request
from quart_trio import QuartTrio

from gymserve.http.bodies import answer
from gymserve.http.dashboard.files import FILES, PAGE_PATH, File

_HEADERS = {
    # Whatever a hostile label might become on the page, it can load nothing, send nothing and run nothing.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",  # kept, and asked for again: all files are of one gymserve
}


def add_dashboard(app: QuartTrio) -> None:
    for path, file in FILES.items():
        app.add_url_rule(path, path, partial(_served, file))

    @app.get("/")
    async def alive() -> Response:
        """For launchers, that the server is there; a browser is led to the page."""
        response = answer({"status": "ok"}, 303 if _prefers_a_page() else 200)
        response.headers["Vary"] = "Accept"
        if response.status_code == 303:
            response.headers["Location"] = PAGE_PATH.lstrip("/")  # relative, as a proxy may have us below a prefix
        return response

    @app.get(f"{PAGE_PATH}/")
    async def one_slash_too_many() -> Response:
        return Response(b"", status=308, headers={"Location": f"..{PAGE_PATH[PAGE_PATH.rindex('/') :]}"})


def _prefers_a_page() -> bool:
    """RFC 9110 section 12.5.1. Programs accept anything, or JSON no less: to them we are an API."""
    accepted = request.accept_mimetypes
    return accepted.quality("text/html") > accepted.quality("application/json")


async def _served(file: File) -> Response:
    if request.if_none_match.contains_weak(file.etag):
        response = Response(b"", status=304, headers=_HEADERS)
        response.headers.remove("Content-Type")
        response.headers.remove("Content-Length")
    else:
        response = Response(file.content, content_type=file.content_type, headers=_HEADERS)
    response.set_etag(file.etag)
    return response
