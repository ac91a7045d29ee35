"""A dataset of another package, whose archives a server of our own has."""

import hashlib
import io
import tarfile
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import numpy as np
from PIL import Image

NAME = "their_set"
SOURCE = '''"""Theirs: four pictures of two things in two places."""
from afield.data.domains import Download, DomainSet
from afield.data.downloads import Archive
from afield.data.modalities.image import Image
from afield.data.sources.folders import folder_reader

DOMAINS, CLASSES = ("here", "there"), ("cup", "pot")
theirs = DomainSet(
    name="{name}",
    domains=DOMAINS,
    classes=CLASSES,
    reader=folder_reader("theirs/set", DOMAINS, CLASSES),
    modality=Image(),
    needs=("theirs/set/here", "theirs/set/there"),
    download=Download(
        archives={archives}, instructions="write to [them] and unpack their disk in theirs"
    ),
)
'''


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@contextmanager
def served(folder):
    """The address of a server that has the files of a folder."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def archive_of(path, domains):
    """A tar.gz with the set's pictures, two for each domain and class, and its checksum."""
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for domain in domains:
            for label in ("cup", "pot"):
                for i in range(2):
                    data = io.BytesIO()
                    pixels = np.full((8, 8, 3), 60 * (domain == "there") + 10 * i, np.uint8)
                    Image.fromarray(pixels).save(data, "png")
                    info = tarfile.TarInfo(f"set/{domain}/{label}/{i}.png")
                    info.size = len(data.getvalue())
                    data.seek(0)
                    tar.addfile(info, data)
    return f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}"
