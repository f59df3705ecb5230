'use strict';
// The live parts of a page, the view of a log, and the terminal of a shell. What comes from a
// container is only ever put into a page as text.

const $ = id => document.getElementById(id);
const make = (name, text, cls) => {
  const e = document.createElement(name);
  e.textContent = text;
  if (cls) e.className = cls;
  return e;
};

// Live parts are fetched again with their page. DOMParser runs no scripts.
function live(parts) {
  if (!parts.length) return;
  const again = async () => {
    const chosen = !getSelection().isCollapsed;
    if (!document.hidden && !chosen) {
      try {
        const url = new URL(location.href);
        url.searchParams.set('live', '1');
        const answer = await fetch(url, {signal: AbortSignal.timeout(10000)});
        const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
        for (const part of parts) {
          const now = page.getElementById(part.id);
          if (!now || now.innerHTML === part.innerHTML) continue;
          const link = part.contains(document.activeElement) && document.activeElement.getAttribute('href');
          part.replaceChildren(...document.adoptNode(now).childNodes);
          if (link) part.querySelector(`a[href="${CSS.escape(link)}"]`)?.focus({preventScroll: true});
        }
        if (!answer.ok) $('lost').textContent = page.querySelector('main').textContent;
        $('lost').hidden = answer.ok;
      } catch {
        $('lost').hidden = false;
      }
    }
    setTimeout(again, 2000);
  };
  setTimeout(again, 2000);
}

// A log: its last lines, and then new ones. Only maxLines are kept, and longer lines are cut up.
function log(box) {
  const maxLines = 5000, maxLine = 8192;
  const search = $('search'), only = $('only');
  let rest = '', fresh = [], due = false, found = 0;

  const mark = div => { // shows a line with the matches of the search
    const text = div.line, want = search.value.toLowerCase(), low = text.toLowerCase();
    const hits = want !== '' && low.length === text.length && low.includes(want);
    div.hidden = only.checked && want !== '' && !hits;
    if (!hits) {
      if (div.childElementCount || div.textContent !== text) div.textContent = text;
      return;
    }
    found++;
    const parts = [];
    let at = 0;
    for (let i; (i = low.indexOf(want, at)) >= 0 && parts.length < 200; at = i + want.length)
      parts.push(text.slice(at, i), make('mark', text.slice(i, i + want.length)));
    div.replaceChildren(...parts, text.slice(at));
  };
  const count = () => { $('count').textContent = search.value ? found + ' lines' : ''; };
  const again = () => {
    found = 0;
    for (const div of box.children) if (div.line !== undefined) mark(div);
    count();
  };
  search.addEventListener('input', again);
  only.addEventListener('change', again);

  const flush = () => {
    due = false;
    const end = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    const lines = fresh.slice(-maxLines);
    fresh = [];
    box.append(...lines.map(text => {
      const div = document.createElement('div');
      div.line = text;
      mark(div);
      return div;
    }));
    while (box.childElementCount > maxLines) {
      if (box.firstChild.querySelector('mark')) found--;
      box.firstChild.remove();
    }
    count();
    if (end) box.scrollTop = box.scrollHeight;
  };
  const add = text => {
    // Sequences that set colours come with the picture of ESC (visible.go), and are left out.
    fresh.push(text.replace(/\u241b\[[0-9;:]*m/g, '').replace(/\u240d$/, ''));
    if (fresh.length > 2 * maxLines) fresh.splice(0, maxLines);
    if (!due) due = true, setTimeout(flush, 100);
  };
  (async () => {
    let said = 'The log has ended.';
    try {
      const answer = await fetch(box.dataset.url);
      if (!answer.ok) {
        said = new DOMParser().parseFromString(await answer.text(), 'text/html').querySelector('main').textContent;
      } else {
        const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let r; !(r = await reader.read()).done;) {
          const lines = (rest + r.value).split('\n');
          rest = lines.pop();
          lines.forEach(add);
          for (; rest.length > maxLine; rest = rest.slice(maxLine)) add(rest.slice(0, maxLine));
        }
        if (rest) add(rest);
      }
    } catch {
      said = 'The agent does not answer any more.';
    }
    flush();
    box.append(make('div', said, 'end'));
    box.scrollTop = box.scrollHeight;
  })();
}

// A shell. The agent emulates the terminal: it sends lines of text with classes, and gets keys by
// their names.
function shell(box) {
  const maxPast = 1000;
  const screen = $('screen'), past = $('past'), keys = $('keys');
  const url = new URL(box.dataset.url, location.href);
  url.protocol = url.protocol.replace('http', 'ws');
  const socket = new WebSocket(url);
  const send = message => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
  const row = runs => {
    const div = document.createElement('div');
    div.append(...runs.map(([text, cls]) => make('span', text, cls)));
    return div;
  };
  const fit = () => {
    const probe = screen.appendChild(make('span', 'M'.repeat(20)));
    const {width} = probe.getBoundingClientRect(), height = parseFloat(getComputedStyle(screen).lineHeight);
    probe.remove();
    if (width) send({size: [Math.floor((box.clientWidth - 16) / width * 20), Math.floor((box.clientHeight - 14) / height)]});
  };
  let said = 'No connection. Does the container still run?';
  socket.onopen = () => {
    said = 'The agent has ended the connection.';
    fit();
    new ResizeObserver(fit).observe(box);
    keys.focus({preventScroll: true});
  };
  socket.onmessage = e => {
    const frame = JSON.parse(e.data);
    if (frame.end) return void (said = frame.end);
    const end = box.scrollHeight - box.scrollTop - box.clientHeight < 40;
    if (frame.cleared) past.replaceChildren();
    past.append(...(frame.past || []).map(row));
    while (past.childElementCount > maxPast) past.firstChild.remove();
    past.hidden = frame.other;
    while (screen.childElementCount > frame.rows) screen.lastChild.remove();
    while (screen.childElementCount < frame.rows) screen.append(row([]));
    for (const y in frame.lines || {}) screen.children[y].replaceWith(row(frame.lines[y]));
    if (end) box.scrollTop = box.scrollHeight;
  };
  socket.onclose = () => { $('said').textContent = said; };

  // Enter is not among the named keys: it is a line feed in the text that was typed.
  const named = /^(Backspace|Tab|Escape|Delete|Insert|PageUp|PageDown|Home|End|Arrow(Up|Down|Left|Right))$/;
  keys.addEventListener('keydown', e => {
    if (e.isComposing || e.metaKey) return;
    if (e.ctrlKey && !e.altKey && !e.shiftKey && /^[a-z@[\\\]^_]$/i.test(e.key)) send({key: '^' + e.key});
    else if (e.altKey && !e.ctrlKey && e.key.length === 1) send({text: '\x1b' + e.key});
    else if (!e.ctrlKey && !e.shiftKey && named.test(e.key)) send({key: e.key});
    else return;
    e.preventDefault();
  });
  const typed = () => {
    if (keys.value) send({text: keys.value.replace(/\n/g, '\r')});
    keys.value = '';
  };
  keys.addEventListener('input', e => { if (!e.isComposing) typed(); });
  keys.addEventListener('compositionend', typed);
  keys.addEventListener('paste', e => {
    e.preventDefault();
    send({paste: e.clipboardData.getData('text')});
  });
  box.addEventListener('click', () => { if (getSelection().isCollapsed) keys.focus({preventScroll: true}); });
  for (const b of document.querySelectorAll('[data-key]'))
    b.addEventListener('click', () => { send({key: b.dataset.key}); keys.focus({preventScroll: true}); });
}

live(document.querySelectorAll('[data-live]'));
if ($('log')) log($('log'));
if ($('terminal')) shell($('terminal'));
