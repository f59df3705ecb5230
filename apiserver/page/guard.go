package page

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/apiserver/listen"
	"github.com/crisp-cri/crisp/internal/periodic"
)

// How a browser gets a session: "crisp page" asks the agent for a URL, over its socket (root and
// the group "crisp") or with its token. The URL works once, within keyLife, and sets a cookie for
// sessionLife. The cookie is signed, and the agent stores no sessions, so they survive its restart.
const (
	cookieName  = "crisp-page"
	keyLife     = 5 * time.Minute
	sessionLife = 12 * time.Hour
	maxKeys     = 16
)

// policy is the Content-Security-Policy of every response.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; " +
	"form-action 'self'; frame-ancestors 'none'; base-uri 'none'"

// ServeHTTP implements http.Handler. It refuses requests that another site may have made:
//
//   - Host must be a loopback address or localhost. After DNS rebinding it is another name.
//   - Origin must be ours. Browsers send it with requests other than GET and HEAD, and with those
//     for a WebSocket. Sec-Fetch-Site, if it is sent, must be none or same-origin, except for a
//     navigation: a server at another port of this address is the same site, but not our origin.
//   - SameSite=Strict keeps browsers from sending the cookie with requests that other sites cause.
//   - The headers below keep other sites from framing these pages and from reading them.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "same-origin") // with "no-referrer" our own forms have the origin "null"
	h.Set("Cache-Control", "no-store")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	switch {
	case !listen.IsLocal(r.Host):
		http.Error(w, "ask for 127.0.0.1 or localhost", http.StatusMisdirectedRequest)
	case !ownOrigin(r):
		http.Error(w, "another site has made this request", http.StatusForbidden)
	case r.Header.Get("Upgrade") != "":
		s.mux.ServeHTTP(w, r) // a WebSocket sets its own deadlines
	default:
		c := http.NewResponseController(w)
		c.SetWriteDeadline(time.Now().Add(writePatience)) // fails only in tests, which have no connection
		s.mux.ServeHTTP(w, r)
		c.Flush()
		c.SetWriteDeadline(time.Time{}) // the connection may be reused
	}
}

// ownOrigin reports whether a request comes from one of our pages, or is a navigation: a typed
// address, or a link on any site.
func ownOrigin(r *http.Request) bool {
	scheme := "http://"
	if r.TLS != nil {
		scheme = "https://"
	}
	origin, ok := r.Header["Origin"]
	if ok && (len(origin) != 1 || !strings.EqualFold(origin[0], scheme+r.Host)) {
		return false
	}
	upgrade := r.Header.Get("Upgrade") != ""
	if !ok && (upgrade || r.Method != http.MethodGet && r.Method != http.MethodHead) {
		return false
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
		return true
	}
	return r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" && r.Method == http.MethodGet
}

// keys has the one-time keys in the URLs that "crisp page" prints. It keeps only the newest
// maxKeys.
type keys struct {
	mu   sync.Mutex
	list []key // guarded by mu
}

type key struct {
	sum   [sha256.Size]byte // of the key
	until time.Time
}

// issue makes a key: 128 random bits in hex.
func (k *keys) issue() string {
	raw := make([]byte, 16)
	rand.Read(raw)
	text := hex.EncodeToString(raw)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.list = append(k.list, key{sha256.Sum256([]byte(text)), time.Now().Add(keyLife)})
	if len(k.list) > maxKeys {
		k.list = slices.Delete(k.list, 0, len(k.list)-maxKeys)
	}
	return text
}

// redeem reports whether text is a valid key, and makes it invalid.
func (k *keys) redeem(text string) bool {
	sum := sha256.Sum256([]byte(text))
	k.mu.Lock()
	defer k.mu.Unlock()
	found := slices.IndexFunc(k.list, func(one key) bool {
		return subtle.ConstantTimeCompare(sum[:], one.sum[:]) == 1 && !periodic.Past(one.until)
	})
	if found < 0 {
		return false
	}
	k.list = slices.Delete(k.list, found, found+1)
	return true
}

// open starts a session if the URL has a valid key.
func (s *Server) open(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet || !s.keys.redeem(r.URL.Query().Get("key")) {
		s.show(w, r, http.StatusUnauthorized, "message", view{Title: "No session", Body: "This URL was used before, or is too old. The command \"crisp page\" prints another."})
		return
	}
	until := time.Now().Add(sessionLife)
	s.setCookie(w, r, s.session(until), int(sessionLife.Seconds()))
	http.Redirect(w, r, listen.PagePath, http.StatusSeeOther)
}

// leave ends the session of this browser.
func (s *Server) leave(w http.ResponseWriter, r *http.Request) {
	s.setCookie(w, r, "", -1)
	http.Redirect(w, r, listen.PagePath, http.StatusSeeOther)
}

func (s *Server) setCookie(w http.ResponseWriter, r *http.Request, value string, seconds int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: value, Path: listen.PagePath, MaxAge: seconds, HttpOnly: true, Secure: r.TLS != nil, SameSite: http.SameSiteStrictMode,
	})
}

// session returns the value of the cookie of a session: END.HMAC, where END is in Unix seconds
// and HMAC is hex.
func (s *Server) session(until time.Time) string {
	text := strconv.FormatInt(until.Unix(), 10)
	return text + "." + s.sign(text)
}

func (s *Server) sign(text string) string {
	mac := hmac.New(sha256.New, []byte(s.o.Key))
	mac.Write([]byte("session of the page until " + text))
	return hex.EncodeToString(mac.Sum(nil))
}

func (s *Server) hasSession(r *http.Request) bool {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return false
	}
	text, signature, _ := strings.Cut(c.Value, ".")
	if !hmac.Equal([]byte(signature), []byte(s.sign(text))) {
		return false
	}
	until, err := strconv.ParseInt(text, 10, 64)
	return err == nil && time.Now().Unix() < until
}
