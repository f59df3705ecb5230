package page

import (
	"crypto/tls"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Only the page itself may do more than navigate, and only under a local host name.
func TestOtherSites(t *testing.T) {
	s := newServer(t, fakeAPI(hostilePod()), newFake())
	const self = "http://" + address
	for _, c := range []struct {
		about, method, host string
		headers             map[string]string
		tls                 bool
		want                int
	}{
		{about: "typed", want: 200},
		{about: "typed, by a browser that says so", headers: map[string]string{"Sec-Fetch-Site": "none", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, want: 200},
		{about: "localhost", host: "localhost:10350", want: 200},
		{about: "through another port", host: "127.0.0.1:9", want: 200},
		{about: "IPv6", host: "[::1]:10350", want: 200},
		{about: "rebinding", host: "rebind.example:10350", want: 421},
		{about: "an address that is not ours", host: "192.0.2.1", want: 421},
		{about: "the page's script", headers: map[string]string{"Sec-Fetch-Site": "same-origin", "Sec-Fetch-Mode": "cors"}, want: 200},
		{about: "another site's link", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}, want: 200},
		{about: "another site's frame", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}, want: 403},
		{about: "another site's script", headers: map[string]string{"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, want: 403},
		{about: "a script of another port", headers: map[string]string{"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "no-cors"}, want: 403},
		{about: "another origin", headers: map[string]string{"Origin": "http://evil.example"}, want: 403},
		{about: "another port's origin", headers: map[string]string{"Origin": "http://127.0.0.1:80"}, want: 403},
		{about: "no origin that can be told", headers: map[string]string{"Origin": "null"}, want: 403},
		{about: "another scheme's origin", headers: map[string]string{"Origin": "https://" + address}, want: 403},
		{about: "TLS", tls: true, headers: map[string]string{"Origin": "https://" + address}, want: 200},
		{about: "the page's own form", method: "POST", headers: map[string]string{"Origin": self}, want: 303},
		{about: "a form without origin", method: "POST", want: 403},
		{about: "a form of another site", method: "POST", headers: map[string]string{"Origin": "http://evil.example"}, want: 403},
		{about: "a WebSocket without origin", headers: map[string]string{"Upgrade": "websocket"}, want: 403},
		{about: "a WebSocket of another site", headers: map[string]string{"Upgrade": "websocket", "Origin": "http://evil.example"}, want: 403},
	} {
		path := "/page/"
		if c.method == "POST" {
			path = "/page/leave"
		}
		r := httptest.NewRequest(c.method, self+path, nil)
		if c.host != "" {
			r.Host = c.host
		}
		if c.tls {
			r.TLS = &tls.ConnectionState{}
		}
		for name, value := range c.headers {
			r.Header.Set(name, value)
		}
		r.AddCookie(&http.Cookie{Name: cookieName, Value: s.session(time.Now().Add(time.Hour))})
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != c.want || w.Header().Get("Content-Security-Policy") != policy {
			t.Errorf("%s: %d, policy %q, want %d", c.about, w.Code, w.Header().Get("Content-Security-Policy"), c.want)
		}
	}
}

// Nothing is shown without a session. A cookie with a bad signature is no session.
func TestSessions(t *testing.T) {
	s, other := newServer(t, fakeAPI(hostilePod()), newFake()), newServer(t, fakeAPI(hostilePod()), newFake())
	other.o.Key = "another"
	later := time.Now().Add(time.Hour)
	good := s.session(later)
	_, signature, _ := strings.Cut(good, ".")
	for about, c := range map[string]struct {
		cookie string
		want   int
	}{
		"right": {good, 200}, "none": {"", 401}, "no signature": {"99999999999.", 401}, "of another agent": {other.session(later), 401},
		"prolonged": {"99999999999." + signature, 401}, "over": {s.session(time.Now().Add(-time.Second)), 401}, "nonsense": {"x.y.z", 401},
	} {
		for _, path := range append(pages, "/page/pods/default/web/lines/app", "/page/pods/default/web/exec/app?command=sh") {
			r := httptest.NewRequest(http.MethodGet, "http://"+address+path, nil)
			if c.cookie != "" {
				r.AddCookie(&http.Cookie{Name: cookieName, Value: c.cookie})
			}
			w := httptest.NewRecorder()
			s.ServeHTTP(w, r)
			if c.want == 401 && (w.Code != 401 || strings.Contains(w.Body.String(), "alert(1)")) || c.want == 200 && w.Code == 401 {
				t.Errorf("a cookie that is %s, %s: %d", about, path, w.Code)
			}
		}
	}
}

// The URL that opens the page works once, and only for a short time.
func TestWayIn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newServer(t, fakeAPI(hostilePod()), newFake())
		opener := s.Opener(http.NotFoundHandler())
		issue := func() string {
			t.Helper()
			w := httptest.NewRecorder()
			opener.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "http://agent/crisp/v1/page", nil))
			at := strings.TrimSpace(w.Body.String())
			if w.Code != 200 || !strings.HasPrefix(at, "http://"+address+"/page/open?key=") {
				t.Fatalf("%d %s", w.Code, w.Body)
			}
			return at
		}
		ask := func(method, at string) *httptest.ResponseRecorder {
			w := httptest.NewRecorder()
			s.ServeHTTP(w, httptest.NewRequest(method, at, nil))
			return w
		}
		at := issue()
		if w := ask(http.MethodHead, at); w.Code != 401 {
			t.Errorf("a look ahead: %d", w.Code)
		}
		w := ask(http.MethodGet, at)
		if w.Code != 303 || w.Header().Get("Location") != "/page/" {
			t.Fatalf("the first time: %d %v", w.Code, w.Header())
		}
		c := w.Result().Cookies()[0]
		if !c.HttpOnly || c.SameSite != http.SameSiteStrictMode || c.Path != "/page/" || c.Secure {
			t.Errorf("the cookie is %+v", c)
		}
		has := func() bool {
			r := httptest.NewRequest(http.MethodGet, "/page/", nil)
			r.AddCookie(c)
			return s.hasSession(r)
		}
		if !has() {
			t.Error("the cookie is no session")
		}
		if w := ask(http.MethodGet, at); w.Code != 401 || len(w.Result().Cookies()) > 0 {
			t.Errorf("a second time: %d", w.Code)
		}
		if w := ask(http.MethodGet, "http://"+address+"/page/open"); w.Code != 401 {
			t.Errorf("without a key: %d", w.Code)
		}
		old, first := issue(), issue()
		for range maxKeys - 1 {
			issue()
		}
		if w := ask(http.MethodGet, old); w.Code != 401 {
			t.Errorf("one of too many keys: %d", w.Code)
		}
		time.Sleep(keyLife)
		if w := ask(http.MethodGet, first); w.Code != 401 {
			t.Errorf("an old key: %d", w.Code)
		}
		time.Sleep(sessionLife)
		if has() {
			t.Error("a session does not end")
		}
		for method, path := range map[string]string{http.MethodGet: "/crisp/v1/page", http.MethodPost: "/other"} {
			w := httptest.NewRecorder()
			opener.ServeHTTP(w, httptest.NewRequest(method, "http://agent"+path, nil))
			if want := map[string]int{http.MethodGet: 405, http.MethodPost: 404}[method]; w.Code != want {
				t.Errorf("%s %s: %d, want %d", method, path, w.Code, want)
			}
		}
	})
}
