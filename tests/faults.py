"""Every way a server over HTTP can die in a call, or refuse it. Each takes the request and its message."""

from aiohttp import web

from tests.upstream_server import event, stream


async def cut(request, _):
    request.transport.abort()
    return web.Response()


async def cut_after_headers(request, _):
    response = await stream(request)
    request.transport.abort()
    return response


async def cut_in_the_body(request, _):
    response = web.StreamResponse(headers={"Content-Type": "application/json", "Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"jsonrpc":"2.0",')
    request.transport.abort()
    return response


async def end_without_an_answer(request, _):
    response = await stream(request)
    await event(response, {"jsonrpc": "2.0", "method": "notifications/message", "params": {}})
    await event(response, {"jsonrpc": "2.0", "id": 999_999, "result": {}})
    return response


def status(code, body=b"<html>", kind="text/html"):
    async def fault(_, __):
        return web.Response(status=code, body=body, content_type=kind)

    return fault


async def huge(request, _):
    response = await stream(request)
    for _ in range(100):
        await response.write(b"data: " + b"x" * 1000)
    return response


MAY_HAVE_ACTED = {
    "cut": cut,
    "cut after headers": cut_after_headers,
    "cut in the body": cut_in_the_body,
    "a stream without an answer": end_without_an_answer,
    "html": status(200),
    "an empty body": status(200, b"", "application/json"),
    "not json": status(200, b"{", "application/json"),
    "another id": status(200, b'{"jsonrpc":"2.0","id":77,"result":{}}', "application/json"),
    "accepted": status(202, b""),
    "500": status(500),
    "502": status(502),
    "503": status(503, b'{"error":1}', "application/json"),
}
CANNOT_HAVE_ACTED = {
    "400": status(400),
    "401": status(401),
    "403": status(403),
    "405": status(405, b"", "application/json"),
    "a redirect": status(307, b""),
}
