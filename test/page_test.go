package test

import (
	"archive/tar"
	"crypto/rand"
	"fmt"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/crisp-cri/crisp/test/testenv"
)

// hostileText is put into every text of another user's pod.
const hostileText = `<script>window.owned=1</script><img src=x onerror=window.owned=1>`

// pagePods has pods with such texts: in a log and annotations, in an image's name, which is in
// events, and in a container's termination message.
const pagePods = `apiVersion: v1
kind: Pod
metadata: {name: web, annotations: {note: "` + hostileText + `\e]0;owned\a"}, labels: {app: web}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: app
    image: IMAGE
    args: [print, "` + hostileText + `", print, "\e]0;owned\a\e[31mred\e[0m \u202Egnp.exe", print, needle in the log, count, "-1", 500ms] # not more than the last lines that are shown
    env: [{name: E, value: "` + hostileText + `"}]
    resources: {limits: {memory: 64Mi}}
  - {name: side, image: IMAGE, args: [sleep, for-ever]}
---
apiVersion: v1
kind: Pod
metadata: {name: shell}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - {name: busybox, image: "docker.io/library/busybox:1.36.1", command: [sh, -c, "while :; do sleep 1; done"]}
---
apiVersion: v1
kind: Pod
metadata: {name: a-pod-with-a-name-as-long-as-some-generators-make-them-5f7d8c9b6-x2x4q}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: crash
    image: IMAGE
    args: [write, /dev/termination-log, "` + hostileText + `", exit, "3"]
---
apiVersion: v1
kind: Pod
metadata: {name: bad-image, namespace: other}
spec:
  containers: [{name: c, image: "not/there:` + hostileText + `"}]
`

// The agent's page in a browser: it shows hostile pods, live, with a log and a shell, on a phone
// and in dark mode, and other sites have no access. PAGE_SHOTS=DIR keeps screenshots.
func TestPage(t *testing.T) {
	testenv.Need(t, "program:chromium")
	busybox := testenv.Program(t, "busybox-static", "busybox")
	address := testenv.FreePort(t)
	n, _ := startNode(t, func(n *node, _ string) error { return serveBusybox(t, n, busybox) })
	n.expects(`not/there`)
	l := labOn(t, n, "--listen", address, "--page")
	l.until(func() bool { _, code := l.agentProcess.crisp("", "get", "nodes"); return code == 0 }, "the agent answers")
	l.says(0, "", "apply", "-f", l.agentProcess.file("pods.yaml", pagePods))
	l.says(0, "", "wait", "pod/web", "pod/shell", "--for=condition=Ready", "--timeout=2m")

	b := startBrowser(t, l.agentProcess)
	t.Run("pods", b.test(pageShowsPods))
	t.Run("pull", b.test(pageShowsPull))
	t.Run("pod", b.test(pageShowsPod))
	t.Run("log", b.test(pageShowsLog))
	t.Run("shell", b.test(pageHasShell))
	t.Run("images", b.test(pageShowsImages))
	t.Run("telephone", b.test(pageFitsTelephone))
	t.Run("dark", b.test(pageIsDark))
	t.Run("other sites", func(t *testing.T) { pageIsForNobodyElse(t, b, address) })
	t.Run("leave", b.test(pageIsLeft))
	b.close()
	l.says(0, "", "delete", "-f", filepath.Join(n.dir, "pods.yaml"))
}

// serveBusybox puts Docker's busybox image into a registry on loopback.
func serveBusybox(t *testing.T, n *node, program string) error {
	n.registry = newRegistry()
	t.Cleanup(n.registry.close)
	image, err := busyboxImage(program)
	if err != nil {
		return err
	}
	if err := n.push("library/busybox:1.36.1", image); err != nil {
		return err
	}
	random := make([]byte, 1<<20) // does not compress
	rand.Read(random)
	more, err := layer([]*tar.Header{{Name: "random", Mode: 0o644, Typeflag: tar.TypeReg}}, [][]byte{random})
	if err != nil {
		return err
	}
	if image, err = mutate.AppendLayers(image, more); err != nil {
		return err
	}
	if err := n.push("library/slow:1", image); err != nil {
		return err
	}
	conf := fmt.Sprintf("[[registry]]\nlocation = \"docker.io\"\nblocked = false\n[[registry.mirror]]\nlocation = %q\ninsecure = true\n", n.registry.host())
	return os.WriteFile(filepath.Join(n.dir, "registries.conf"), []byte(conf), 0o644)
}

func (b *browser) unharmed() {
	b.t.Helper()
	if !b.is(`window.owned === undefined && document.scripts.length === 1 && !document.title.includes("owned") && !document.querySelector("main img")`) {
		b.t.Errorf("a text of a pod has become part of the page:\n%s", b.text("html"))
	}
}

func pageShowsPods(b *browser) {
	b.says("main", "web", "2/2", "Running", "other/bad-image", "InvalidImageName")
	b.says("tr", "a-pod-with-a-name-as-long")
	b.until(`[...document.querySelectorAll(".pods td[data-label=memory]")].some(e => /[MK]iB/.test(e.innerText))`)
	b.says(".node", "not ready", "Memory", "Disk")
	b.says(".state.bad", "CrashLoopBackOff")
	b.until(`document.querySelector(".pods tbody span.state").classList.contains("bad")`) // they come first
	b.shot("pods")
	// Pods that are added and removed are shown without a reload.
	js[any](b, `window.mine = 1`)
	path := b.agent.file("one.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: comes}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: IMAGE, args: [sleep, for-ever]}]}\n")
	b.agent.says(0, "", "apply", "-f", path)
	b.until(`[...document.querySelectorAll("tr")].some(e => /comes/.test(e.innerText) && /Running/.test(e.innerText)) && window.mine === 1`)
	b.agent.says(0, "", "delete", "-f", path)
	b.until(`![...document.querySelectorAll("tr")].some(e => /comes/.test(e.innerText)) && window.mine === 1`)
}

func pageShowsPull(b *browser) {
	r := b.agent.n.registry
	r.mu.Lock()
	r.rate = 100_000
	r.mu.Unlock()
	path := b.agent.file("slow.yaml", "apiVersion: v1\nkind: Pod\nmetadata: {name: slow}\nspec: {terminationGracePeriodSeconds: 1, containers: [{name: c, image: \"docker.io/library/slow:1\", command: [sh, -c, \"sleep 1000\"]}]}\n")
	b.agent.says(0, "", "apply", "-f", path)
	b.until(`document.querySelector(".card progress") && document.querySelector("td.state progress")`)
	b.until(`document.querySelector(".card progress[value]")?.value > 5`)
	b.says(".card", "docker.io/library/slow:1", "%")
	b.shot("pull")
	r.mu.Lock()
	r.rate = 0
	r.mu.Unlock()
	b.until(`!document.querySelector("progress")`)
	b.agent.says(0, "", "delete", "-f", path)
}

func pageShowsPod(b *browser) {
	b.open("/page/")
	b.click(`a[href="/page/pods/default/web"]`)
	b.until(`location.pathname === "/page/pods/default/web"`)
	b.says("main", "web", "default/web is ready", "app", "side", "running for", "memory limit 64Mi", "ContainersReady", "Started", "Start-up", "sandbox")
	b.until(`document.querySelectorAll("figure polyline").length >= 4`) // CPU, memory, received, sent
	b.until(`document.querySelector("figure polyline").points.length > 2`)
	js[any](b, `document.querySelector("summary").click()`)
	b.says(".yaml", "<script>window.owned=1</script>", `\e]0;owned\a`, "kind: Pod")
	b.until(`document.querySelectorAll(".waterfall rect").length > 2`)
	js[any](b, `document.querySelector("summary").click()`)
	b.shot("pod")
	b.open("/page/pods/default/a-pod-with-a-name-as-long-as-some-generators-make-them-5f7d8c9b6-x2x4q")
	b.says("main", "ended with code 3", "<script>window.owned=1</script>")
	b.open("/page/pods/default/none")
	b.says("main", "none")
	<-b.wrong // for the status 404
}

func pageShowsLog(b *browser) {
	b.open("/page/pods/default/web")
	b.click(`a[href$="/log/app"]`)
	b.says("#log", "<script>window.owned=1</script>", "␛]0;owned␇red �gnp.exe", "needle in the log", "\n4\n")
	b.types("#search", "NEEDLE")
	b.until(`document.querySelector("#log mark")?.textContent === "needle"`)
	b.says("#count", "1 lines")
	b.click("#only")
	b.until(`[...document.querySelectorAll("#log > div")].filter(e => !e.hidden).length === 1`)
	js[any](b, `document.querySelector("#search").value = ""; document.querySelector("#search").dispatchEvent(new Event("input"))`)
	b.until(`[...document.querySelectorAll("#log > div")].filter(e => !e.hidden).length > 5`)
	// The log continues.
	js[any](b, `window.before = document.querySelector("#log").childElementCount`)
	b.until(`document.querySelector("#log").childElementCount > window.before + 3`)
	b.shot("log")
	b.open("/page/pods/default/web/log/app?timestamps=1")
	b.until(`/^20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z <script>/.test(document.querySelector("#log div")?.textContent)`)
	b.open("/page/pods/default/web/log/none")
	b.says("#log .end", "no container none")
	<-b.wrong // for the status 404
}

// keyboard is the element that a terminal's keys go to, rows has the lines that it shows.
const keyboard, rows = ".xterm-helper-textarea", ".xterm-rows"

func pageHasShell(b *browser) {
	b.open("/page/pods/default/shell")
	b.click(`a[href$="/shell/busybox"]`)
	b.says(rows, "#")
	b.types(keyboard, "echo $((6*7))xyz"+enter)
	b.says(rows, "42xyz")
	b.types(keyboard, `printf '\033]0;owned\007\033[31mred\033[0m \033[1;42mwide\033[m \033[38;2;1;250;3mgreen\033[m\n<script>window.owned=1</script>\n'`+enter)
	b.until(`[...document.querySelectorAll(".xterm-rows .xterm-fg-1")].some(e => e.textContent === "red") && [...document.querySelectorAll(".xterm-rows .xterm-bold.xterm-bg-2")].some(e => e.textContent === "wide")`)
	b.until(`[...document.querySelectorAll(".xterm-rows span")].some(e => e.textContent === "green" && getComputedStyle(e).color === "rgb(1, 250, 3)")`)
	b.until(`getComputedStyle(document.querySelector(".xterm-rows .xterm-fg-1")).color === "rgb(255, 123, 114)"`)
	b.says(rows, "<script>window.owned=1</script>")
	// The terminal does not answer queries: the shell would read the answer as input.
	b.types(keyboard, `printf '\033[6n\033[5n\033[?6n\033[c\033[>c\033[4$p\033[?25$p\033[14t\033[18t\033[?1004h\033]4;1;?\007\033]10;?\007\033]11;?\007\033]12;?\007\033P$qm\033\\\033P$qr\033\\'; read -t 1 x; echo "answer:$x:"`+enter)
	b.says(rows, "answer::")
	b.types(keyboard, `printf '\033]8;;http://evil.example/\033\\text\033]8;;\033\\ \033]4;1;#010203\007\033[31mno link\033[m\n'`+enter)
	b.says(rows, "text no link")
	b.until(`!document.querySelector(".xterm-rows [class*=underline]") && getComputedStyle(document.querySelector(".xterm-rows .xterm-fg-1")).color === "rgb(255, 123, 114)"`)
	// Wide characters take two columns, combining ones none, and none changes the direction of text.
	b.types(keyboard, `clear; for i in $(seq $(($(stty size | cut -d ' ' -f 2) / 2 + 1))); do printf '\346\274\242'; done; printf 'next e\314\201nd \360\237\230\200 gnp\342\200\256.exe\n'`+enter)
	b.until(`[...document.querySelectorAll(".xterm-rows > div")].some(e => /^漢+next e\u0301nd 😀 gnp\.exe/.test(e.textContent))`)
	// Named keys, and the size.
	b.types(keyboard, "echo oneX"+backspace+enter)
	b.says(rows, "\none")
	b.types(keyboard, arrowUp+"again"+enter)
	b.says(rows, "\noneagain")
	b.types(keyboard, `clear; until [ $(stty size | cut -d ' ' -f 2) -lt 130 ]; do sleep 0.1; done; stty size | sed 's/ /x/'`+enter)
	b.viewport(900, 500, false)
	b.until(`(size => size && size[1] >= 10 && size[1] < 25 && size[2] > 80)(/(?:^|\n)(\d+)x(\d+)\n/.exec(document.querySelector(".xterm-rows").innerText))`)
	b.types(keyboard, `clear; until [ $(stty size | cut -d ' ' -f 2) -gt 130 ]; do sleep 0.1; done; echo $((6*7))columns`+enter)
	b.viewport(1280, 800, false)
	b.says(rows, "42columns")
	// An editor has the whole screen, and returns it.
	b.types(keyboard, "echo before; vi /text"+enter)
	b.says(rows, "~\n~\n~")
	b.until(`!document.querySelector(".xterm-rows").innerText.includes("before")`)
	b.types(keyboard, "ione"+enter+"two"+escape)
	b.says(rows, "- /text [Modified] 2/2") // what follows an Escape at once would belong to it
	b.types(keyboard, ":wq"+enter)
	b.says(rows, "before")
	b.types(keyboard, "clear; tac /text"+enter)
	b.says(rows, "two\none")
	// More output than the browser shows at once, and pasted text without its escape sequences.
	b.types(keyboard, "clear; seq 200000"+enter)
	b.says(rows, "\n199999\n200000\n")
	js[any](b, `(data => { data.setData("text/plain", "echo pas\x1b[Dted\n"); document.querySelector(".xterm-helper-textarea").dispatchEvent(new ClipboardEvent("paste", {clipboardData: data, bubbles: true})); })(new DataTransfer())`)
	b.says(rows, "\npas[Dted")
	b.types(keyboard, "clear; ls -C /bin /"+enter)
	b.says(rows, "httpd")
	b.shot("shell")
	b.types(keyboard, "exit 3"+enter)
	b.says("#said", "The command has ended", "3")
	b.open("/page/pods/default/shell/shell/busybox?command=%2Fbin%2Fnone")
	b.says("#said", "The command has ended")
	b.open("/page/pods/default/web/shell/none")
	b.says("#said", "No connection")
	for len(b.wrong) > 0 { // the browser's own reports of that
		<-b.wrong
	}
}

func pageShowsImages(b *browser) {
	b.open("/page/images")
	b.says("main", testImage, "Images", "Logs", "free")
	b.shot("images")
}

// pagePaths are the paths of all pages.
var pagePaths = []string{
	"/page/", "/page/images", "/page/pods/default/web", "/page/pods/default/web/log/app", "/page/pods/default/shell/shell/busybox", "/page/pods/other/bad-image",
	"/page/pods/default/a-pod-with-a-name-as-long-as-some-generators-make-them-5f7d8c9b6-x2x4q",
}

// No page is wider than a phone.
func pageFitsTelephone(b *browser) {
	b.viewport(390, 844, true)
	for i, path := range pagePaths {
		b.open(path)
		switch path {
		case "/page/":
			b.until(`document.querySelectorAll(".pods tr").length > 3`)
		case "/page/pods/default/web":
			b.until(`document.querySelectorAll("figure polyline").length >= 4`)
		case "/page/pods/default/web/log/app":
			b.says("#log", "needle")
		case "/page/pods/default/shell/shell/busybox":
			b.says(rows, "#")
			b.types(keyboard, "ls -C /bin"+enter)
			b.says(rows, "httpd")
		}
		width, window := js[int](b, "document.documentElement.scrollWidth"), js[int](b, "window.innerWidth")
		if width > 390 || window != 390 {
			b.t.Errorf("%s is %d wide in a window of %d", path, width, window)
		}
		if i < 5 {
			b.shot([]string{"phone-pods", "phone-images", "phone-pod", "phone-log", "phone-shell"}[i])
		}
	}
	b.viewport(1280, 800, false)
}

// In dark mode the page is dark, and text still contrasts with its background.
func pageIsDark(b *browser) {
	b.open("/page/pods/default/web")
	brightness := func(property string) float64 {
		return js[float64](b, fmt.Sprintf(`getComputedStyle(document.body).%s.match(/\d+/g).slice(0, 3).reduce((a, c) => a + +c, 0) / 765`, property))
	}
	if back, ink := brightness("backgroundColor"), brightness("color"); back < 0.8 || ink > 0.3 {
		b.t.Errorf("in light mode the background's brightness is %.2f, that of text %.2f", back, ink)
	}
	b.scheme("dark")
	if back, ink := brightness("backgroundColor"), brightness("color"); back > 0.2 || ink < 0.7 {
		b.t.Errorf("in dark mode the background's brightness is %.2f, that of text %.2f", back, ink)
	}
	b.until(`document.querySelectorAll("figure polyline").length >= 4`)
	b.shot("pod-dark")
	b.scheme("light")
}

// evilPage tries what a site can do that is open in the same browser. base is the page's URL.
const evilPage = `<!doctype html><title>…</title><script>
const base = %q, results = [];
const done = text => { results.push(text); if (results.length === 4) document.title = results.sort().join(); };
fetch(base + "/page/", {credentials: "include"}).then(() => done("read"), () => done("1 not read"));
fetch(base + "/page/leave", {method: "POST", mode: "no-cors", credentials: "include"}).then(() => done("2 sent"), () => done("2 refused"));
const s = new WebSocket(base.replace("http", "ws") + "/page/pods/default/shell/exec/busybox?command=sh");
s.onopen = () => done("a shell");
s.onerror = () => done("3 no shell");
const frame = document.createElement("iframe");
frame.src = base + "/page/";
frame.onload = () => { try { done("framed " + frame.contentDocument.title); } catch { done("4 not framed"); } };
document.documentElement.append(frame);
</script>`

// pageIsForNobodyElse: other sites, at another port of the same address and under another host
// name, and clients that are not browsers have no access.
func pageIsForNobodyElse(t *testing.T, b *browser, address string) {
	evil := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(w, evilPage, "http://"+address)
	}))
	defer evil.Close()
	mine := *b
	mine.t = t
	for _, at := range []string{evil.URL, strings.Replace(evil.URL, "127.0.0.1", "localhost", 1)} {
		mine.navigate(at)
		mine.until(`document.title.split(",").length === 4`)
		if title := js[string](&mine, "document.title"); title != "1 not read,2 sent,3 no shell,4 not framed" && title != "1 not read,2 refused,3 no shell,4 not framed" {
			t.Errorf("a site at %s can: %s", at, title)
		}
	}
	mine.open("/page/")
	mine.says("h1", "Pods") // nor could it end the session
	for len(b.wrong) > 0 {
		<-b.wrong
	}

	// Clients that are not browsers.
	out, _ := b.agent.crisp("", "page")
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	client := &http.Client{Jar: jar}
	defer client.CloseIdleConnections()
	ask := func(at, host, origin string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, at, nil)
		if err != nil {
			t.Fatal(err)
		}
		if req.Host = host; origin != "" {
			req.Header.Set("Origin", origin)
		}
		resp, err := client.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode
	}
	if code := ask("http://"+address+"/page/", "", ""); code != http.StatusUnauthorized {
		t.Errorf("without a session: %d", code)
	}
	if code := ask(strings.TrimSpace(out), "", ""); code != http.StatusOK {
		t.Errorf("the login link: %d", code)
	}
	if code := ask(strings.TrimSpace(out), "", ""); code != http.StatusUnauthorized {
		t.Errorf("the login link, used again: %d", code)
	}
	if code := ask("http://"+address+"/page/", "rebind.example", ""); code != http.StatusMisdirectedRequest {
		t.Errorf("under another host name: %d", code)
	}
	if code := ask("http://"+address+"/page/", "", "http://evil.example"); code != http.StatusForbidden {
		t.Errorf("from another site: %d", code)
	}
	if code := ask("http://"+address+"/pods", "", ""); code != http.StatusUnauthorized {
		t.Errorf("the API, with the page's session: %d", code)
	}
}

func pageIsLeft(b *browser) {
	b.open("/page/")
	b.click("header button")
	b.says("main", "has no session")
	b.open("/page/pods/default/web")
	b.says("main", "has no session")
	for len(b.wrong) > 0 { // for the status 401
		<-b.wrong
	}
}
