package agent

import (
	"context"
	"errors"
	"path/filepath"

	"github.com/crisp-cri/crisp/agent/manifest"
	"github.com/crisp-cri/crisp/agent/source"
	"github.com/crisp-cri/crisp/internal/fault"
)

// sources returns the names of the sources, all of which must report before any pod is ended.
func (o *Options) sources() []string {
	list := []string{manifest.SourceFile}
	if o.URL != "" {
		list = append(list, manifest.SourceHTTP)
	}
	return append(list, manifest.SourceAPI)
}

// startSources starts all sources, which send updates until ctx ends.
func (a *agent) startSources(ctx context.Context, updates chan<- source.Update) {
	copies := func(name string) source.Copies {
		return source.Copies(filepath.Join(a.o.Root, "copies", name))
	}
	dir := &source.Dir{Path: a.o.Manifests, Log: a.o.Log, Copies: copies(manifest.SourceFile), Decode: a.decode(manifest.SourceFile)}
	go dir.Run(ctx, updates)
	if a.o.URL != "" {
		url := &source.URL{URL: a.o.URL, Header: a.o.URLHeader, Log: a.o.Log, Copies: copies(manifest.SourceHTTP), Decode: a.decode(manifest.SourceHTTP)}
		go url.Run(ctx, updates)
	}
	go func() {
		for {
			select {
			case <-a.store.Changed():
			case <-ctx.Done():
				return
			}
			select {
			case updates <- a.store.Update():
			case <-ctx.Done():
				return
			}
		}
	}()
}

// expire deletes ended jobs whose ttlSecondsAfterFinished have passed.
func (a *agent) expire() {
	for _, o := range a.wanted.Expired() {
		if _, err := a.store.Delete(manifest.Key(o), o.GetUID(), nil, false); err != nil && !errors.Is(err, fault.NotFound) {
			a.o.Log.Error("expired job not deleted", "object", manifest.Key(o), "err", err)
		}
	}
}

// decode returns the decoder of the manifests of one source.
func (a *agent) decode(name string) source.Decode {
	return func(path string, data []byte, accepted bool) ([]manifest.Object, manifest.Errors, error) {
		return manifest.Read(path, data, manifest.Options{NodeName: a.o.NodeName, Source: name, Accepted: accepted})
	}
}
