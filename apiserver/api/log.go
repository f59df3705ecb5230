package api

import (
	"io"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"github.com/crisp-cri/crisp/agent/criruntime"
	"github.com/crisp-cri/crisp/agent/podsync"
	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/logread"
)

// log writes a container's log as PodLogOptions in the query say.
func (s *Server) log(w http.ResponseWriter, r *http.Request) error {
	pod, c, err := s.target(r)
	if err != nil {
		return err
	}
	q := r.URL.Query()
	id := c.ContainerID
	if BoolParam(q, "previous") {
		if c.LastTerminationState.Terminated == nil {
			return fault.NotFound.Errorf("container %s of pod %s/%s has not run before", c.Name, pod.Namespace, pod.Name)
		}
		id = c.LastTerminationState.Terminated.ContainerID
	}
	if id == "" {
		return fault.WrongState.Errorf("container %s of pod %s/%s has not run yet", c.Name, pod.Namespace, pod.Name)
	}
	o, err := logOptions(q, flusher{w})
	if err != nil {
		return err
	}
	runtime, _, err := s.Runtime()
	if err != nil {
		return err
	}
	resp, err := runtime.ContainerStatus(r.Context(), podsync.RuntimeID(id), false)
	if err != nil {
		return err
	}
	l, err := logread.Open(resp.GetStatus().GetLogPath())
	if err != nil {
		return fault.NotFound.Errorf("log of container %s: %v", c.Name, err)
	}
	defer l.Close()
	if BoolParam(q, "follow") && !BoolParam(q, "previous") {
		o.Running = criruntime.Running(runtime, podsync.RuntimeID(id))
	}
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	if err := l.Copy(r.Context(), o); err != nil && r.Context().Err() == nil {
		s.o.Log.DebugContext(r.Context(), "log ended early", "err", err) // part of it is already sent
	}
	return nil
}

// logOptions returns the options in the query, except follow.
func logOptions(q url.Values, to io.Writer) (o logread.Options, err error) {
	switch s := q.Get("stream"); s {
	case "", "All":
		o.Stdout, o.Stderr = to, to
	case "Stdout":
		o.Stdout = to
	case "Stderr":
		o.Stderr = to
	default:
		return o, fault.Invalid.Errorf("stream: %q is not All, Stdout or Stderr", s)
	}
	o.Timestamps = BoolParam(q, "timestamps")
	for name, to := range map[string]**int64{"tailLines": &o.Tail, "limitBytes": &o.Limit} {
		if !q.Has(name) {
			continue
		}
		n, err := strconv.ParseInt(q.Get(name), 10, 64)
		if err != nil || n < 0 {
			return o, fault.Invalid.Errorf("%s: %q is not a number from 0", name, q.Get(name))
		}
		*to = &n
	}
	if text := q.Get("sinceSeconds"); text != "" {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 1 {
			return o, fault.Invalid.Errorf("sinceSeconds: %q is not a number from 1", text)
		}
		o.Since = time.Now().Add(-podsync.Seconds(n))
	}
	if text := q.Get("sinceTime"); text != "" {
		if o.Since, err = time.Parse(time.RFC3339Nano, text); err != nil {
			return o, fault.Invalid.Errorf("sinceTime: %v", err)
		}
	}
	return o, nil
}

// A flusher flushes after each write, since a client may be waiting.
type flusher struct{ http.ResponseWriter }

func (f flusher) Write(p []byte) (int, error) {
	n, err := f.ResponseWriter.Write(p)
	http.NewResponseController(f.ResponseWriter).Flush()
	return n, err
}
