package shim

import (
	"path"
	"slices"
	"time"

	"github.com/crisp-cri/crisp/internal/fault"
)

// An Any is a message of any type: google.protobuf.Any.
type Any struct {
	TypeURL string
	Value   []byte
}

func (a Any) encode() (m message) {
	m.string(1, a.TypeURL)
	if len(a.Value) > 0 {
		m.nested(2, a.Value)
	}
	return m
}

func decodeAny(data []byte) (a *Any, err error) {
	a = &Any{}
	return a, decode(data, func(number int, v value) error {
		switch {
		case number == 1:
			return v.text(&a.TypeURL)
		case number == 2 && v.wire == bytesType:
			a.Value = v.bytes
		}
		return nil
	})
}

// A Mount is one of a root file system that the shim mounts itself: containerd.types.Mount.
type Mount struct {
	Type, Source, Target string
	Options              []string
}

func (o Mount) encode() (m message) {
	m.string(1, o.Type)
	m.string(2, o.Source)
	m.string(3, o.Target)
	for _, option := range o.Options {
		m.nested(4, message(option))
	}
	return m
}

// IO are the paths of FIFOs that the shim opens; "" = none. With a terminal there is no Stderr.
type IO struct {
	Terminal              bool
	Stdin, Stdout, Stderr string
}

func (o IO) encode(m *message, first int) {
	m.bool(first, o.Terminal)
	m.string(first+1, o.Stdin)
	m.string(first+2, o.Stdout)
	m.string(first+3, o.Stderr)
}

// A CreateRequest is that of Create. Without Rootfs, the root file system is in the bundle.
type CreateRequest struct {
	ID, Bundle string
	Rootfs     []Mount
	IO
	Checkpoint string // a directory that Checkpoint has written; Start restores it; "" = none
	Options    *Any   // of the shim's runtime; nil = its defaults
}

func (r CreateRequest) encode() (m message) {
	m.string(1, r.ID)
	m.string(2, r.Bundle)
	for _, mount := range r.Rootfs {
		m.nested(3, mount.encode())
	}
	r.IO.encode(&m, 4)
	m.string(8, r.Checkpoint)
	m.any(10, r.Options)
	return m
}

// An ExecRequest is that of Exec.
type ExecRequest struct {
	ID, ExecID string
	IO
	Spec Any // see ProcessSpec
}

func (r ExecRequest) encode() (m message) {
	m.string(1, r.ID)
	m.string(2, r.ExecID)
	r.IO.encode(&m, 3)
	m.any(7, &r.Spec)
	return m
}

// ProcessSpec returns the Spec of an ExecRequest: a specs.Process of OCI, as JSON.
func ProcessSpec(json []byte) Any {
	return Any{TypeURL: "types.containerd.io/opencontainers/runtime-spec/1/Process", Value: json}
}

// Resources returns an argument of Update: the specs.LinuxResources of OCI, as JSON.
func Resources(json []byte) Any {
	return Any{TypeURL: "types.containerd.io/opencontainers/runtime-spec/1/LinuxResources", Value: json}
}

// RuncOptions is the type of the options of runc's shim.
const RuncOptions = "containerd.runc.v1.Options"

// RuncWork returns options of runc's shim, nil or of that type, with the directory where CRIU works
// when it restores: criu_work_path.
func RuncWork(options *Any, dir string) *Any {
	var m message
	if options != nil {
		m = slices.Clone(options.Value)
	}
	m.string(11, dir)
	return &Any{TypeURL: RuncOptions, Value: m}
}

// RuncCheckpoint returns the options of Checkpoint for runc's shim: CRIU works in dir, and the container
// runs on, with its file locks.
func RuncCheckpoint(dir string) *Any {
	var m message
	m.bool(5, true)
	m.string(9, dir)
	return &Any{TypeURL: "containerd.runc.v1.CheckpointOptions", Value: m}
}

// A Status is the state of a task.
type Status int

// The states of containerd.v1.types.Status.
const (
	Unknown Status = iota
	Created
	Running
	Stopped
	Paused
	Pausing
)

// A State is the answer of State. Exit is nil unless the status is Stopped.
type State struct {
	ID, ExecID, Bundle string
	PID                int
	Status             Status
	IO
	Exit *Exit
}

// An Exit is how a process ended. At is zero if the shim has sent no valid time.
type Exit struct {
	PID    int // 0 = unknown
	Status uint32
	At     time.Time
}

// exitFields are the field numbers of an Exit in one of the messages that have it.
type exitFields struct{ pid, status, at int }

func (f exitFields) set(e *Exit, number int, v value) (err error) {
	switch {
	case number == f.pid:
		e.PID = v.pid()
	case number == f.status && v.wire == varintType:
		e.Status = v.uint32()
	case number == f.at && v.wire == bytesType:
		e.At, err = decodeTime(v.bytes)
	}
	return err
}

func (f exitFields) decode(data []byte) (*Exit, error) {
	e := &Exit{}
	return e, decode(data, func(number int, v value) error { return f.set(e, number, v) })
}

var (
	waitFields   = exitFields{pid: -1, status: 1, at: 2}
	deleteFields = exitFields{pid: 1, status: 2, at: 3}
	stateFields  = exitFields{pid: -1, status: 9, at: 10}
	eventFields  = exitFields{pid: 3, status: 4, at: 5}

	sandboxFields = exitFields{pid: -1, status: -1, at: 6} // its status is told by Wait alone
)

func decodeState(data []byte) (*State, error) {
	s, exit := &State{}, &Exit{}
	err := decode(data, func(number int, v value) error {
		switch number {
		case 1:
			return v.text(&s.ID)
		case 2:
			return v.text(&s.Bundle)
		case 3:
			s.PID = v.pid()
		case 4:
			if s.Status = Unknown; v.wire == varintType && v.number <= uint64(Pausing) {
				s.Status = Status(v.number)
			}
		case 5:
			return v.text(&s.Stdin)
		case 6:
			return v.text(&s.Stdout)
		case 7:
			return v.text(&s.Stderr)
		case 8:
			s.Terminal = v.number != 0
		case 11:
			return v.text(&s.ExecID)
		}
		return stateFields.set(exit, number, v)
	})
	if s.Status == Stopped {
		exit.PID = s.PID
		s.Exit = exit
	}
	return s, err
}

// Processes returns the number of processes in an answer of Stats: 0 if it does not have it.
func (a Any) Processes() (n int) {
	pids := map[string]int{"io.containerd.cgroups.v1.Metrics": 2, "io.containerd.cgroups.v2.Metrics": 1}[path.Base(a.TypeURL)]
	_ = decode(a.Value, func(number int, v value) error {
		if number != pids || v.wire != bytesType {
			return nil
		}
		return decode(v.bytes, func(number int, v value) error {
			if number == 1 && v.wire == varintType {
				n = int(v.uint32())
			}
			return nil
		})
	})
	return n
}

// decodePID is for answers whose field 1 is a PID: those of Create, Start and Connect.
func decodePID(data []byte) (pid int, err error) {
	return pid, decode(data, func(number int, v value) error {
		if number == 1 {
			pid = v.pid()
		}
		return nil
	})
}

// decodeStats returns the field 1 of an answer, an Any; nil = it has none.
func decodeStats(data []byte) (a *Any, err error) {
	return a, decode(data, func(number int, v value) (err error) {
		if number == 1 && v.wire == bytesType {
			a, err = decodeAny(v.bytes)
		}
		return err
	})
}

// decodeProcesses returns how many processes an answer of Pids has.
func decodeProcesses(data []byte) (n int, err error) {
	return n, decode(data, func(number int, v value) error {
		if number == 1 && v.wire == bytesType {
			n++
		}
		return nil
	})
}

// ids are the first two fields of most requests.
func ids(id, execID string) (m message) {
	m.string(1, id)
	m.string(2, execID)
	return m
}

// malformed is the error of a message that cannot be decoded.
func malformed(what string, err error) error {
	return fault.Internal.Errorf("%s: malformed message: %w", what, err)
}
