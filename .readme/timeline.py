"""Draw the requests of a journal as bars: python3 timeline.py site.jsonl > timeline.svg"""
import html
import json
import sys

records = [record for record in map(json.loads, open(sys.argv[1])) if "at" in record]
if not records:
    sys.exit("the journal has no request, as that of a folder")
start, ends, bars = min(record["at"] for record in records), [], []
for record in sorted(records, key=lambda record: record["at"]):
    begin, width = record["at"] - start, record.get("seconds", 0)
    lane = next((lane for lane, end in enumerate(ends) if end <= begin), len(ends))
    ends[lane:lane + 1] = [begin + width]
    colour = "#d9534f" if "kind" in record else "#8a8f98" if "is_check" in record else "#3b82c4"
    bars.append(f'<rect x="{begin * 400:.0f}" y="{lane * 16}" width="{max(2, width * 400 - 1):.0f}" '
                f'height="13" fill="{colour}"><title>{html.escape(record["url"])}</title></rect>')
print(f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {max(ends) * 400:.0f} {len(ends) * 16}">',
      *bars, "</svg>")
