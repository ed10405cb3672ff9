"""The template of the report: plain HTML, one column, readable in print and in the dark."""

PAGE = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{{ record.build }} · Shardwright</title>
<style>
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { margin-bottom: 0; } h2 { margin-top: 2.5rem; }
code { font-size: .85em; overflow-wrap: anywhere; }
.tiles, .pictures { display: grid; gap: .8rem; grid-template-columns: repeat(auto-fill, minmax(9.5rem, 1fr)); }
.tiles div { background: var(--soft); border-radius: .5rem; padding: .7rem .9rem; }
.tiles b { display: block; font-size: 1.35rem; }
figure { margin: 0; } figure img { width: 100%; height: 9rem; object-fit: contain; background: var(--soft); }
figcaption { font-size: .8rem; } figcaption code { opacity: .6; }
.plot { background: #fff; border-radius: .5rem; padding: .5rem; margin: .8rem 0; }
.plot svg { width: 100%; height: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; }
th, td { text-align: left; padding: .25rem .6rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.n, th.n { text-align: right; font-variant-numeric: tabular-nums; }
</style>
</head>
<body>
<h1>{{ record.build }}</h1>
<p>{{ audit.verdict }}. Build digest <code>{{ record.sha256 }}</code></p>
<div class="tiles">{% for figure, what in tiles %}<div><b>{{ figure }}</b>{{ what }}</div>{% endfor %}</div>

<h2>What the web gave</h2>
{% for warning in audit.warnings %}<p><strong>{{ warning }}</strong></p>{% endfor %}
{% for plot in plots %}<div class="plot">{{ plot | safe }}</div>{% endfor %}
<table>
<tr><th>stage</th><th>reason</th><th class="n">count</th><th class="n">% of URLs</th><th>what it means</th><th>what to do</th></tr>
{% for row in reasons %}<tr><td>{{ row.stage }}</td><td>{{ row.reason }} {{ row.code }}</td><td class="n">{{ row.count }}</td>
<td class="n">{{ row.percent_of_urls }}</td><td>{{ row.meaning }}</td><td>{{ row.advice }}</td></tr>
{% endfor %}</table>

<h2>What was kept</h2>
<p>{{ "{:,}".format(record.counts.read) }} samples read, {{ "{:,}".format(record.counts.kept) }} kept.
Left out: {% for reason, count in record.counts.dropped.items() if count %}{{ reason }} {{ "{:,}".format(count) }}{{ ", " if not loop.last }}{% else %}none{% endfor %}.
The first samples of <code>{{ shown }}</code>:</p>
<div class="pictures">{% for picture in pictures %}<figure><img src="{{ picture.url }}" alt="">
<figcaption>{{ picture.caption }}<br><code>{{ picture.uid[:12] }}</code></figcaption></figure>{% endfor %}</div>

<h2>What was learned</h2>
<p>{{ record.config.train.mode }} on {{ record.model.repo }}
(<code>{{ record.model.revision[:12] }}</code>, {{ record.model.class }}):
{{ "{:,}".format(done.num_samples) }} samples, {{ "{:,}".format(done.num_supervised_tokens) }} supervised tokens.
Dropped by the loader: {% for reason, count in done.num_dropped.items() if count %}{{ reason }} {{ count }}{{ ", " if not loop.last }}{% else %}none{% endfor %}.</p>
<div class="plot">{{ losses | safe }}</div>

<h2>What it is made of</h2>
<table>
<tr><th>tar</th><th class="n">samples</th><th class="n">bytes</th><th>SHA-256</th></tr>
{% for tar in tars %}<tr><td>{{ tar.name }}</td><td class="n">{{ "{:,}".format(tar.samples) }}</td>
<td class="n">{{ "{:,}".format(tar.bytes) }}</td><td><code>{{ tar.sha256 }}</code></td></tr>
{% endfor %}</table>
<table>
<tr><th>file</th><th>SHA-256</th></tr>
{% for entry in record.metadata.files %}<tr><td>{{ entry.file }}</td><td><code>{{ entry.sha256 }}</code></td></tr>
{% endfor %}{% for name, digest in record.model.files.items() %}<tr><td>base model: {{ name }}</td><td><code>{{ digest }}</code></td></tr>
{% endfor %}{% for name, digest in record.checkpoint.items() %}<tr><td>checkpoint: {{ name }}</td><td><code>{{ digest }}</code></td></tr>
{% endfor %}</table>
<p>The whole record, with config, programs and packages: <code>provenance.json</code>.</p>
</body>
</html>
"""
