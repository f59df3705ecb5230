// Package behaviour says how the shim of tests, test/shimtest, behaves, and what it was asked.
package behaviour

import (
	"bytes"
	"encoding/json"
	"errors"
	"io/fs"
	"os"
)

// A Behaviour is what a shim does besides running containers. A call is named as in the Task API, or
// "start" and "delete"; with " sandbox" or " container" added it is meant for these alone.
type Behaviour struct {
	Version int               // of the Task API; 0 = 3
	Answer  string            // to start: "message", "json", "address", or any text; "" = message
	Record  string            // a file to which each request is appended
	Hang    []string          // calls that are never answered
	Die     []string          // calls in which the shim is killed
	Fail    map[string]string // calls that fail, by a status code's name and a text: "NotFound: no such …"
	Silent  bool              // no events are published
	Twice   bool              // each event is published twice
	Log     string            // a line that is written to the shim's log at each call
	Dialect string            // whose shim this is: "kata", "runwasi"; "" = none's
	Sandbox bool              // the Sandbox API is served
	NoPids  bool              // counters have no number of processes
}

// TaskVersion is the version of the Task API.
func (b Behaviour) TaskVersion() int {
	if b.Version == 0 {
		return 3
	}
	return b.Version
}

// Load returns the behaviour of the program at path: that in path.json, if there is one.
func Load(path string) (b Behaviour, err error) {
	data, err := os.ReadFile(path + ".json")
	if errors.Is(err, fs.ErrNotExist) {
		return b, nil
	}
	if err != nil {
		return b, err
	}
	return b, json.Unmarshal(data, &b)
}

// Save gives the program at path another behaviour, from its next call on.
func (b Behaviour) Save(path string) error {
	data, err := json.Marshal(b)
	if err != nil {
		return err
	}
	if err := os.WriteFile(path+".json.new", data, 0o600); err != nil {
		return err
	}
	return os.Rename(path+".json.new", path+".json")
}

// A Request is one that a shim has got.
type Request struct {
	Call    string
	Kind    string // of its container: "sandbox", "container", ""
	ID      string // of its container
	Request json.RawMessage
	Error   string // why a dialect's check refused it
}

// Write appends a request to the record.
func (b Behaviour) Write(call, kind, id string, request any) {
	data, err := json.Marshal(request)
	if err == nil {
		b.Append(Request{Call: call, Kind: kind, ID: id, Request: data})
	}
}

// Append appends a request to the record, in one write.
func (b Behaviour) Append(r Request) {
	line, err := json.Marshal(r)
	if b.Record == "" || err != nil {
		return
	}
	f, err := os.OpenFile(b.Record, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return
	}
	defer f.Close()
	_, _ = f.Write(append(line, '\n'))
}

// Requests returns the record.
func (b Behaviour) Requests() (all []Request, err error) {
	data, err := os.ReadFile(b.Record)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	for line := range bytes.Lines(data) {
		var r Request
		if err := json.Unmarshal(line, &r); err != nil {
			return nil, err
		}
		all = append(all, r)
	}
	return all, err
}
