"""Crawl thousands of sites on several machines, with workers of dask.distributed.

One process reads 1,000 pages a second and more from a fast server, so for one site, or for a
hundred small ones, one machine is enough. The journals lie in a folder that all machines share,
given with its whole path. If a worker dies, its sites are crawled again elsewhere, and resume their
journals. After `dask scheduler` on one machine and `dask worker tcp://HOST:8786` on the others:

    PYTHONPATH=. python3 .readme/several.py tcp://HOST:8786 /shared/folder example.com example.org
"""
import sys, time
from contextlib import closing
from pathlib import Path
from dask.distributed import Client, as_completed
import crawl

def check(site: str, path: str) -> str:
    """Crawl a site on a worker, with the journal at *path*, and return the report."""
    report = crawl.Report()
    with closing(crawl.Journal(path, resume=True)) as journal:
        crawler = crawl.Crawler(site, journal=journal, on_record=report.add)
        began = time.monotonic()
        crawl.run(crawler.crawl())
        return "\n".join([*report.failures(), *report.lines(crawler, time.monotonic() - began)])

if __name__ == "__main__":
    scheduler, folder, *sites = sys.argv[1:]  # the folder with its whole path
    with Client(scheduler) as client:
        client.upload_file(crawl.__file__)
        jobs = {client.submit(check, site, f"{folder}/{number}.jsonl", retries=2): (number, site)
                for number, site in enumerate(sites)}
        for job in as_completed(jobs):
            number, site = jobs[job]
            text = job.result() if job.status == "finished" else f"failed: {job.exception()}"
            Path(f"{folder}/{number}.txt").write_text(f"{site}\n{text}\n")
