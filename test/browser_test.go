package test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A browser is Chromium with one tab. It is driven by the DevTools protocol through two pipes, as JSON
// messages that end with NUL bytes: requests with an ID, their answers, and events. The names of the
// messages are those of https://chromedevtools.github.io/devtools-protocol.
type browser struct {
	t       *testing.T
	agent   *agentProcess
	base    string // http://127.0.0.1:PORT
	wrong   chan string
	process *exec.Cmd
	*pipes
}

type pipes struct {
	requests io.WriteCloser
	session  string // of the tab

	mu      sync.Mutex
	last    int                    // request
	waiting map[int]chan<- message // for answers
	loaded  map[string]bool        // documents, by their loader's ID
}

type message struct {
	ID        int                       `json:"id,omitempty"`
	SessionID string                    `json:"sessionId,omitempty"`
	Method    string                    `json:"method,omitempty"`
	Params    any                       `json:"params,omitempty"`
	Result    json.RawMessage           `json:"result,omitempty"`
	Error     *struct{ Message string } `json:"error,omitempty"`
}

// pagePatience is the longest wait for something on the page: emulated nodes have no
// browser.
const pagePatience = time.Minute

// startBrowser opens the page at the URL that crisp page prints.
func startBrowser(t *testing.T, a *agentProcess) *browser {
	t.Helper()
	out, code := a.crisp("", "page")
	at := strings.TrimSpace(out)
	if code != 0 || !strings.HasPrefix(at, "http://127.0.0.1:") {
		t.Fatalf("crisp page: %d %s", code, out)
	}
	b := &browser{t: t, agent: a, base: at[:strings.Index(at, "/page/")], wrong: make(chan string, 100)}
	if err := b.launch(t.Context(), a.n.work); err != nil {
		t.Fatal(err)
	}
	b.viewport(1280, 800, false)
	b.navigate(at)
	b.until(`location.pathname === "/page/"`)
	return b
}

func (b *browser) launch(ctx context.Context, dir string) error {
	b.process = exec.CommandContext(ctx, "chromium", "--headless", "--no-sandbox", "--disable-gpu", "--remote-debugging-pipe",
		"--user-data-dir="+filepath.Join(dir, "browser"), "--no-first-run", "--disable-crash-reporter", "--disable-background-networking",
		"--disable-component-update", "--disable-default-apps", "--disable-extensions", "--disable-sync", "--disable-dev-shm-usage",
		"--disable-renderer-backgrounding", "--hide-scrollbars", "--force-color-profile=srgb", "about:blank")
	b.process.Env = append(os.Environ(), "HOME="+dir)
	in, requests, err := os.Pipe()
	if err != nil {
		return err
	}
	answers, out, err := os.Pipe()
	if err != nil {
		return err
	}
	b.process.ExtraFiles = []*os.File{in, out} // 3 and 4
	b.pipes = &pipes{requests: requests, waiting: map[int]chan<- message{}, loaded: map[string]bool{}}
	if err := b.process.Start(); err != nil {
		return err
	}
	in.Close()
	out.Close()
	go b.read(answers)
	var targets struct {
		TargetInfos []struct{ TargetID, Type string }
	}
	var attached struct{ SessionID string }
	b.call(&targets, "Target.getTargets", nil)
	for _, target := range targets.TargetInfos {
		if target.Type == "page" {
			b.call(&attached, "Target.attachToTarget", params{"targetId": target.TargetID, "flatten": true})
		}
	}
	if b.session = attached.SessionID; b.session == "" {
		return fmt.Errorf("the browser has no tab: %+v", targets)
	}
	for _, domain := range []string{"Page", "Runtime", "Log"} {
		b.call(nil, domain+".enable", nil)
	}
	b.call(nil, "Page.setLifecycleEventsEnabled", params{"enabled": true})
	return nil
}

// close ends the browser.
func (b *browser) close() {
	b.session = ""
	b.call(nil, "Browser.close", nil)
	if err := b.process.Wait(); err != nil {
		b.t.Errorf("end of the browser: %v", err)
	}
	b.requests.Close()
}

type params map[string]any

// call sends a request and decodes its result into out, unless that is nil.
func (b *browser) call(out any, method string, p params) {
	b.t.Helper()
	if err := b.try(out, method, p); err != nil {
		b.t.Fatalf("%s: %v", method, err)
	}
}

func (b *browser) try(out any, method string, p params) error {
	answer := make(chan message, 1)
	b.mu.Lock()
	b.last++
	request := message{ID: b.last, SessionID: b.session, Method: method}
	if p != nil {
		request.Params = p
	}
	b.waiting[request.ID] = answer
	data, err := json.Marshal(request)
	if err == nil {
		_, err = b.requests.Write(append(data, 0))
	}
	b.mu.Unlock()
	if err != nil {
		return err
	}
	select {
	case m := <-answer:
		if m.Error != nil {
			return errors.New(m.Error.Message)
		}
		if out == nil {
			return nil
		}
		return json.Unmarshal(m.Result, out)
	case <-time.After(pagePatience):
		return fmt.Errorf("no answer after %v", pagePatience)
	}
}

// read hands out answers and events until the browser ends.
func (b *browser) read(answers io.ReadCloser) {
	defer answers.Close()
	for r := bufio.NewReader(answers); ; {
		data, err := r.ReadBytes(0)
		if err != nil {
			return
		}
		var m message
		var event json.RawMessage
		m.Params = &event
		if err := json.Unmarshal(bytes.TrimSuffix(data, []byte{0}), &m); err != nil {
			b.complain("a message that is no JSON: " + err.Error())
			continue
		}
		b.mu.Lock()
		answer := b.waiting[m.ID]
		delete(b.waiting, m.ID)
		b.mu.Unlock()
		if answer != nil {
			answer <- m
		} else if m.Method != "" {
			b.event(m.Method, event)
		}
	}
}

func (b *browser) event(method string, data json.RawMessage) {
	var e struct {
		Entry            struct{ Level, Text string }
		ExceptionDetails struct{ Text string }
		Message          string
		Name, LoaderID   string
	}
	if err := json.Unmarshal(data, &e); err != nil {
		return // an event whose fields of these names are something else
	}
	switch {
	case method == "Log.entryAdded" && e.Entry.Level == "error":
		b.complain(e.Entry.Text)
	case method == "Runtime.exceptionThrown":
		b.complain(e.ExceptionDetails.Text)
	case method == "Page.javascriptDialogOpening":
		b.complain("a dialog: " + e.Message)
	case method == "Page.lifecycleEvent" && e.Name == "load":
		b.mu.Lock()
		b.loaded[e.LoaderID] = true
		b.mu.Unlock()
	}
}

func (b *browser) complain(text string) {
	select {
	case b.wrong <- text:
	default:
	}
}

// test returns f as a subtest, which also fails for errors that the browser has reported, and if a
// pod's text was executed as a script.
func (b *browser) test(f func(b *browser)) func(t *testing.T) {
	return func(t *testing.T) {
		mine := *b
		agent := *b.agent
		agent.t, mine.t, mine.agent = t, t, &agent
		f(&mine)
		mine.unharmed()
		select {
		case text := <-b.wrong:
			t.Errorf("the browser reports: %s", text)
		default:
		}
	}
}

// js returns the value of an expression in the page.
func js[T any](b *browser, expression string) (value T) {
	b.t.Helper()
	var answer struct {
		Result           struct{ Value json.RawMessage }
		ExceptionDetails *struct {
			Text      string
			Exception struct{ Description string }
		}
	}
	err := b.try(&answer, "Runtime.evaluate", params{"expression": expression, "returnByValue": true})
	for ; err != nil && strings.Contains(err.Error(), "navigated"); time.Sleep(50 * time.Millisecond) { // to the next document
		err = b.try(&answer, "Runtime.evaluate", params{"expression": expression, "returnByValue": true})
	}
	if e := answer.ExceptionDetails; e != nil {
		err = fmt.Errorf("%s %s", e.Text, e.Exception.Description)
	}
	if err == nil && answer.Result.Value != nil {
		err = json.Unmarshal(answer.Result.Value, &value)
	}
	if err != nil {
		b.t.Fatalf("%s: %v", expression, err)
	}
	return value
}

func (b *browser) is(expression string) bool {
	b.t.Helper()
	return js[bool](b, "!!("+expression+")")
}

func (b *browser) text(selector string) string {
	b.t.Helper()
	return js[string](b, fmt.Sprintf("(document.querySelector(%q) || {innerText: '(none)'}).innerText", selector))
}

func (b *browser) until(expression string) {
	b.t.Helper()
	for deadline := time.Now().Add(pagePatience); !b.is(expression); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.t.Fatalf("not so after %v: %s\n%s", pagePatience, expression, b.text("body"))
		}
	}
}

// says waits until an element shows each of the texts.
func (b *browser) says(selector string, texts ...string) {
	b.t.Helper()
	for _, text := range texts {
		b.until(fmt.Sprintf("[...document.querySelectorAll(%q)].some(e => e.innerText.includes(%q))", selector, text))
	}
}

// click moves no mouse, but presses and releases its button in the middle of an element.
func (b *browser) click(selector string) {
	b.t.Helper()
	element := fmt.Sprintf("document.querySelector(%q)", selector)
	b.until(element + "?.checkVisibility()")
	at := js[[2]float64](b, `(e => {
		e.scrollIntoView({block: "center", behavior: "instant"});
		const r = e.getBoundingClientRect();
		return [r.x + r.width / 2, r.y + r.height / 2];
	})(`+element+`)`)
	for _, kind := range []string{"mousePressed", "mouseReleased"} {
		b.call(nil, "Input.dispatchMouseEvent", params{"type": kind, "x": at[0], "y": at[1], "button": "left", "clickCount": 1})
	}
}

// Keys without a character of their own, as types takes them.
const (
	enter     = "\r"
	backspace = "\b"
	escape    = "\x1b"
	arrowUp   = "\u2191"
)

// types types a text into an element.
func (b *browser) types(selector, text string) {
	b.t.Helper()
	element := fmt.Sprintf("document.querySelector(%q)", selector)
	b.until(element)
	js[any](b, element+".focus()")
	for _, char := range text {
		key := params{"key": string(char), "text": string(char)}
		switch string(char) {
		case enter:
			key = params{"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13, "text": "\r"}
		case backspace:
			key = params{"key": "Backspace", "code": "Backspace", "windowsVirtualKeyCode": 8}
		case escape:
			key = params{"key": "Escape", "code": "Escape", "windowsVirtualKeyCode": 27}
		case arrowUp:
			key = params{"key": "ArrowUp", "code": "ArrowUp", "windowsVirtualKeyCode": 38}
		}
		for _, kind := range []string{"keyDown", "keyUp"} {
			key["type"] = kind
			b.call(nil, "Input.dispatchKeyEvent", key)
			delete(key, "text") // comes with the press
		}
	}
}

func (b *browser) open(path string) {
	b.t.Helper()
	b.navigate(b.base + path)
}

// navigate returns when the document at a URL is loaded.
func (b *browser) navigate(at string) {
	b.t.Helper()
	var answer struct{ LoaderID, ErrorText string }
	b.call(&answer, "Page.navigate", params{"url": at})
	if answer.ErrorText != "" {
		b.t.Fatalf("%s: %s", at, answer.ErrorText)
	}
	for deadline := time.Now().Add(pagePatience); answer.LoaderID != ""; time.Sleep(10 * time.Millisecond) {
		b.mu.Lock()
		loaded := b.loaded[answer.LoaderID]
		b.mu.Unlock()
		if loaded {
			return
		}
		if time.Now().After(deadline) {
			b.t.Fatalf("%s is not loaded after %v", at, pagePatience)
		}
	}
}

func (b *browser) viewport(width, height int, telephone bool) {
	b.t.Helper()
	b.call(nil, "Emulation.setDeviceMetricsOverride", params{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": telephone})
	b.call(nil, "Emulation.setTouchEmulationEnabled", params{"enabled": telephone})
}

// scheme makes the tab prefer light or dark.
func (b *browser) scheme(value string) {
	b.t.Helper()
	b.call(nil, "Emulation.setEmulatedMedia", params{"features": []params{{"name": "prefers-color-scheme", "value": value}}})
}

// shot saves a screenshot of the window.
func (b *browser) shot(name string) {
	b.t.Helper()
	dir := os.Getenv("PAGE_SHOTS")
	if dir == "" {
		return
	}
	var png struct{ Data []byte }
	b.call(&png, "Page.captureScreenshot", nil)
	if err := os.WriteFile(filepath.Join(dir, "page-"+name+".png"), png.Data, 0o644); err != nil {
		b.t.Error(err)
	}
}
