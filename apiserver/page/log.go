package page

import (
	"fmt"
	"io"
	"net/http"
	"net/url"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

const (
	writePatience = 30 * time.Second // for a browser that does not read
	tailLines     = 1000
	maxRefusal    = 64 << 10 // bytes of an error response
)

// A target is the container of a log or shell, and the options in the URL.
type target struct {
	Namespace, Name, Container string
	Previous                   bool // the log of the previous instance
	Timestamps                 bool
	Command                    string
}

func targetOf(r *http.Request) target {
	q := r.URL.Query()
	return target{
		Namespace: r.PathValue("namespace"), Name: r.PathValue("name"), Container: r.PathValue("container"),
		Previous: q.Get("previous") == "1", Timestamps: q.Get("timestamps") == "1", Command: q.Get("command"),
	}
}

func (s *Server) log(w http.ResponseWriter, r *http.Request) error {
	t := targetOf(r)
	s.show(w, r, http.StatusOK, "log", view{Title: "Log of " + t.Name, Body: t})
	return nil
}

// take takes a token, or fails with fault.Unavailable if none is left; release gives it back.
func take(tokens chan struct{}, what string) (release func(), err error) {
	select {
	case tokens <- struct{}{}:
		return func() { <-tokens }, nil
	default:
		return nil, fault.Unavailable.Errorf("at most %d %s at a time", cap(tokens), what)
	}
}

// lines streams the last tailLines lines of a log and then follows it, unless it is the log of the
// previous instance.
func (s *Server) lines(w http.ResponseWriter, r *http.Request) error {
	release, err := take(s.logs, "logs")
	if err != nil {
		return err
	}
	defer release()
	t := targetOf(r)
	q := url.Values{"container": {t.Container}, "tailLines": {fmt.Sprint(tailLines)}}
	q.Set("follow", fmt.Sprint(!t.Previous))
	q.Set("previous", fmt.Sprint(t.Previous))
	q.Set("timestamps", fmt.Sprint(t.Timestamps))
	asked, err := http.NewRequestWithContext(r.Context(), http.MethodGet, podPath("/api/v1", r)+"/log?"+q.Encode(), nil)
	if err != nil {
		return err
	}
	out := &logWriter{answer: answer{header: http.Header{}, code: http.StatusOK}, to: http.NewResponseController(w)}
	out.clean.to = w
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	s.o.API.ServeHTTP(out, asked)
	if out.code >= http.StatusMultipleChoices {
		return refusal(out.code, out.body.Bytes())
	}
	return nil
}

// A logWriter forwards a log with its control characters made visible, and keeps the body of an
// error response.
type logWriter struct {
	answer
	to    *http.ResponseController
	clean cleaner
}

func (w *logWriter) Write(p []byte) (int, error) {
	if w.code >= http.StatusMultipleChoices {
		if w.body.Len()+len(p) > maxRefusal {
			return 0, io.ErrShortWrite
		}
		return w.body.Write(p)
	}
	if err := w.to.SetWriteDeadline(time.Now().Add(writePatience)); err != nil {
		return 0, err
	}
	return w.clean.Write(p)
}

// FlushError implements http.ResponseController's Flush.
func (w *logWriter) FlushError() error { return w.to.Flush() }
