package streaming

import (
	"crypto/rand"
	"net/http"
	"sync"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// A token is valid for tokenLife; at most maxTokens wait for their connection, so that a caller
// who never connects cannot exhaust the memory.
const (
	tokenLife = time.Minute
	maxTokens = 1000
)

// A job serves the one connection that a token admits.
type job func(http.ResponseWriter, *http.Request)

// tokens are the URLs that wait for their connection. The zero value is empty.
type tokens struct {
	mu      sync.Mutex
	waiting map[string]ticket // guarded by mu; by token
}

type ticket struct {
	kind    string
	job     job
	expires time.Time
}

// add stores job under a new token and returns the path of its URL.
func (t *tokens) add(kind string, job job) (path string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting == nil {
		t.waiting = make(map[string]ticket)
	}
	now := time.Now()
	if len(t.waiting) >= maxTokens {
		for token, ticket := range t.waiting {
			if now.After(ticket.expires) {
				delete(t.waiting, token)
			}
		}
	}
	if len(t.waiting) >= maxTokens {
		return "", fault.Unavailable.Errorf("%d streams already wait for their clients", maxTokens)
	}
	token := rand.Text() // 128 bits or more
	t.waiting[token] = ticket{kind, job, now.Add(tokenLife)}
	return "/" + kind + "/" + token, nil
}

// take removes a token and returns its job.
func (t *tokens) take(kind, token string) (job, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	ticket, ok := t.waiting[token]
	if !ok || ticket.kind != kind {
		return nil, false
	}
	delete(t.waiting, token)
	return ticket.job, time.Now().Before(ticket.expires)
}
