package registry

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"go.podman.io/image/v5/pkg/sysregistriesv2"
	"go.podman.io/image/v5/types"
	"go.podman.io/storage/pkg/configfile"

	"github.com/crisp-cri/crisp/internal/fault"
	"github.com/crisp-cri/crisp/internal/regular"
)

// CheckFiles returns the policies, registries.conf and credentials that cannot be read, by file. A
// policy that cannot be read allows nothing.
func CheckFiles(o Settings) []string {
	var wrong []string
	if _, err := policyOf(&types.SystemContext{SignaturePolicyPath: o.PolicyPath}); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled or run: policy: %v", err))
	}
	for _, file := range filesIn(o.PolicyDir, "*.json") {
		if _, err := policyOf(&types.SystemContext{SignaturePolicyPath: file}); err != nil {
			wrong = append(wrong, fmt.Sprintf("no image can be pulled for, or run in, the namespace: %s: %v", file, err))
		}
	}
	sys := &types.SystemContext{SystemRegistriesConfPath: o.RegistriesConf, SystemRegistriesConfDirPath: o.RegistriesConfDir, RegistriesDirPath: o.RegistriesDir}
	if err := checkRegistries(sys); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled: %v", err))
	} else if _, err := sysregistriesv2.TryUpdatingCache(sys); err != nil {
		wrong = append(wrong, fmt.Sprintf("no image can be pulled: registries.conf: %v", err))
	}
	credentials := filesIn(o.AuthDir, "*.json")
	if o.AuthFile != "" {
		credentials = append(credentials, o.AuthFile)
	}
	for _, file := range credentials {
		if err := checkCredentials(file); err != nil {
			wrong = append(wrong, fmt.Sprintf("no image can be pulled by the credentials in %s: %v", file, err))
		}
	}
	return wrong
}

// CheckHosts returns the hosts.toml files that cannot be used, and the settings in others that
// cannot be translated.
func CheckHosts(o Settings) []string {
	var wrong []string
	for _, dir := range o.HostsDirs {
		for _, file := range filesIn(dir, "*/hosts.toml") {
			h, err := readHosts(file, filepath.Base(filepath.Dir(file)))
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("no image of that registry can be pulled: %v", err))
				continue
			}
			for _, p := range h.problems {
				wrong = append(wrong, fmt.Sprintf("%s: %s", file, p))
			}
		}
	}
	return wrong
}

// checkCredentials reads a containers-auth.json(5) as far as that needs no helper program. A
// file that does not exist has no credentials.
func checkCredentials(file string) error {
	data, err := regular.ReadFile(file, regular.MaxConfig)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var c struct {
		Auths map[string]struct{ Auth string }
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return err
	}
	for registry, a := range c.Auths {
		if _, err := base64.StdEncoding.DecodeString(a.Auth); err != nil {
			return fmt.Errorf("auth of %s is not base64", registry) // and it is a secret
		}
	}
	return nil
}

// checkRegistries returns why the library must not read registries.conf, one of its drop-ins, or a
// file of registries.d.
func checkRegistries(sys *types.SystemContext) error {
	return readable(append(searched(configfile.File{
		Name: "registries", Extension: "conf", EnvironmentName: "CONTAINERS_REGISTRIES_CONF",
		CustomConfigFilePath: sys.SystemRegistriesConfPath, CustomConfigFileDropInDirectory: sys.SystemRegistriesConfDirPath,
	}), searched(configfile.File{
		Name: "registries", Extension: "yaml", DoNotLoadMainFiles: true, DoNotUseExtensionForConfigName: true,
		CustomConfigFileDropInDirectory: sys.RegistriesDirPath,
	})...)...)
}

// searched returns the files that the library would read.
func searched(f configfile.File) []string {
	paths, _ := configfile.GetSearchPaths(&f) // the library returns the error too
	files := append(paths.MainFiles, paths.ExtraOverrideFile)
	for _, dir := range paths.DropInDirectories {
		for _, file := range filesIn(dir, "*."+f.Extension) {
			if info, err := os.Lstat(file); err == nil && !info.IsDir() {
				files = append(files, file)
			}
		}
	}
	return files
}

// readable returns why the library must not read one of the files. A missing one is fine.
func readable(files ...string) error {
	for _, file := range files {
		if err := regular.CheckConfig(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return fault.Invalid.Errorf("%w", err)
		}
	}
	return nil
}

// filesIn lists the files of dir, "" = none, that match.
func filesIn(dir, pattern string) []string {
	if dir == "" {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(dir, pattern)) // only a bad pattern is an error
	return files
}
