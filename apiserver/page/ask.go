package page

import (
	"bytes"
	"context"
	"encoding/json"
	"net/http"
	"net/url"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/crisp-cri/crisp/internal/fault"
)

// ask sends a GET of path to the agent's API, within this process, and decodes the JSON of the
// response into to. An error response becomes an error of the kind of its code.
func (s *Server) ask(ctx context.Context, path string, to any) error {
	body, err := s.read(ctx, path)
	if err != nil {
		return err
	}
	return json.Unmarshal(body, to)
}

// read is ask for a body that is not JSON.
func (s *Server) read(ctx context.Context, path string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, path, nil)
	if err != nil {
		return nil, err
	}
	a := &answer{header: http.Header{}, code: http.StatusOK}
	s.o.API.ServeHTTP(a, r)
	if a.code >= http.StatusMultipleChoices {
		return nil, refusal(a.code, a.body.Bytes())
	}
	return a.body.Bytes(), nil
}

// refusal returns the error of an error response: the message of its metav1.Status, or the text
// of the code.
func refusal(code int, body []byte) error {
	status := metav1.Status{Message: http.StatusText(code)}
	_ = json.Unmarshal(body, &status) // without a Status, the text of the code stays
	switch code {
	case http.StatusNotFound:
		return fault.NotFound.Errorf("%s", status.Message)
	case http.StatusServiceUnavailable, http.StatusConflict:
		return fault.Unavailable.Errorf("%s", status.Message)
	case http.StatusUnprocessableEntity:
		return fault.Invalid.Errorf("%s", status.Message)
	}
	return fault.Internal.Errorf("%s", status.Message)
}

// podPath returns the API's path of the pod that a request is for.
func podPath(prefix string, r *http.Request) string {
	return prefix + "/namespaces/" + url.PathEscape(r.PathValue("namespace")) + "/pods/" + url.PathEscape(r.PathValue("name"))
}

// An answer is a ResponseWriter that keeps the response in memory.
type answer struct {
	header http.Header
	code   int
	body   bytes.Buffer
}

func (a *answer) Header() http.Header         { return a.header }
func (a *answer) WriteHeader(code int)        { a.code = code }
func (a *answer) Write(p []byte) (int, error) { return a.body.Write(p) }
