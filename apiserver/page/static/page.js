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

// A shell. xterm.js emulates the terminal.
async function shell(box) {
  // xterm.js makes style elements and attributes. The Content-Security-Policy forbids them, but not
  // style sheets and properties that do the same.
  const create = document.createElement.bind(document);
  document.createElement = (name, options) => {
    if (name !== 'style') return create(name, options);
    const sheet = new CSSStyleSheet(), placeholder = create('i');
    document.adoptedStyleSheets.push(sheet);
    Object.defineProperty(placeholder, 'textContent', {set: text => sheet.replaceSync(text)});
    return placeholder;
  };
  HTMLSpanElement.prototype.setAttribute = function (name, value) {
    if (name === 'style') this.style.cssText = value;
    else Element.prototype.setAttribute.call(this, name, value);
  };

  const {Terminal} = await import('/page/static/xterm/xterm.mjs');
  const screen = $('screen'), style = getComputedStyle(screen);
  const term = new Terminal({
    fontFamily: style.fontFamily, fontSize: parseFloat(style.fontSize), minimumContrastRatio: 4.5,
    theme: {
      background: '#14171b', foreground: '#dfe3e8', cursor: '#dfe3e8', cursorAccent: '#14171b',
      black: '#2a2f37', red: '#ff7b72', green: '#6bd08a', yellow: '#e0b050', blue: '#6cb2ff', magenta: '#d29af0', cyan: '#5cc8d0', white: '#dfe3e8',
      brightBlack: '#848d97', brightRed: '#ffa198', brightGreen: '#8fe8a8', brightYellow: '#f4d080', brightBlue: '#9ccaff', brightMagenta: '#e8c0ff', brightCyan: '#8fe4ea', brightWhite: '#fff',
    },
  });
  // Output must not become input: queries get no answer. Nor may it make links and set colours of the terminal.
  const drop = () => true;
  for (const id of [{final: 'c'}, {prefix: '>', final: 'c'}, {final: 'n'}, {prefix: '?', final: 'n'}, {final: 't'}, {intermediates: '$', final: 'p'}, {prefix: '?', intermediates: '$', final: 'p'}])
    term.parser.registerCsiHandler(id, drop);
  term.parser.registerDcsHandler({intermediates: '$', final: 'q'}, drop);
  term.parser.registerCsiHandler({prefix: '?', final: 'h'}, modes => modes.includes(1004)); // reports of the focus
  for (const id of [4, 8, 10, 11, 12]) term.parser.registerOscHandler(id, drop);
  term.open(screen);

  const url = new URL(box.dataset.url, location.href);
  url.protocol = url.protocol.replace('http', 'ws');
  const socket = new WebSocket(url);
  socket.binaryType = 'arraybuffer';
  const send = message => { if (socket.readyState === WebSocket.OPEN) socket.send(JSON.stringify(message)); };
  const fit = () => {
    const {width, height} = screen.querySelector('.xterm-screen').getBoundingClientRect(), scrollbar = 14;
    if (width && height) term.resize(Math.max(2, Math.floor((screen.clientWidth - scrollbar) / width * term.cols)), Math.max(1, Math.floor(screen.clientHeight / height * term.rows)));
  };
  term.onResize(({cols, rows}) => send({size: [cols, rows]}));
  term.onData(data => { for (const text of data.match(/[^]{1,8000}/gu) || []) send({text}); });
  term.onBinary(text => send({text})); // the mouse, in its old encoding
  let said = 'No connection. Does the container still run?';
  socket.onopen = () => {
    said = 'The agent has ended the connection.';
    fit();
    send({size: [term.cols, term.rows]});
    new ResizeObserver(fit).observe(screen);
    term.focus();
  };
  socket.onmessage = ({data}) => {
    if (typeof data === 'string') said = data;
    else term.write(new Uint8Array(data), () => send({read: data.byteLength}));
  };
  socket.onclose = () => { $('said').textContent = said; };

  // Pasted text has no escape sequences, such as the one that ends a bracketed paste.
  box.addEventListener('paste', e => {
    e.preventDefault();
    e.stopPropagation();
    term.paste(e.clipboardData.getData('text').replaceAll('\x1b', ''));
  }, true);
  const sequences = {Escape: '\x1b', Tab: '\t', '^C': '\x03', '^D': '\x04'};
  const arrows = {ArrowUp: 'A', ArrowDown: 'B', ArrowRight: 'C', ArrowLeft: 'D'};
  for (const b of document.querySelectorAll('[data-key]'))
    b.addEventListener('click', () => {
      term.input(sequences[b.dataset.key] || '\x1b' + (term.modes.applicationCursorKeysMode ? 'O' : '[') + arrows[b.dataset.key]);
      term.focus();
    });
}

live(document.querySelectorAll('[data-live]'));
if ($('log')) log($('log'));
if ($('terminal')) shell($('terminal'));
