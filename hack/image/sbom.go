package main

import (
	"debug/buildinfo"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

// The part of SPDX 2.3 that an SBOM of a Go binary needs.
type spdx struct {
	SPDXVersion       string         `json:"spdxVersion"`
	DataLicense       string         `json:"dataLicense"`
	SPDXID            string         `json:"SPDXID"`
	Name              string         `json:"name"`
	DocumentNamespace string         `json:"documentNamespace"`
	CreationInfo      creationInfo   `json:"creationInfo"`
	Packages          []spdxPackage  `json:"packages"`
	Relationships     []relationship `json:"relationships"`
}

type creationInfo struct {
	Created  string   `json:"created"`
	Creators []string `json:"creators"`
}

type spdxPackage struct {
	SPDXID           string        `json:"SPDXID"`
	Name             string        `json:"name"`
	VersionInfo      string        `json:"versionInfo,omitempty"`
	DownloadLocation string        `json:"downloadLocation"`
	FilesAnalyzed    bool          `json:"filesAnalyzed"`
	LicenseConcluded string        `json:"licenseConcluded"`
	LicenseDeclared  string        `json:"licenseDeclared"`
	CopyrightText    string        `json:"copyrightText"`
	ExternalRefs     []externalRef `json:"externalRefs,omitempty"`
}

type externalRef struct {
	Category string `json:"referenceCategory"`
	Type     string `json:"referenceType"`
	Locator  string `json:"referenceLocator"`
}

type relationship struct {
	Element string `json:"spdxElementId"`
	Type    string `json:"relationshipType"`
	Related string `json:"relatedSpdxElement"`
}

// writeSBOM writes sbom-ARCH.spdx.json: the modules that the binary itself says it was built from.
func writeSBOM(o options, img v1.Image, binary, platform string) error {
	info, err := buildinfo.ReadFile(binary)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return err
	}
	const product = "SPDXRef-Package-devicequota"
	doc := spdx{
		SPDXVersion: "SPDX-2.3", DataLicense: "CC0-1.0", SPDXID: "SPDXRef-DOCUMENT", Name: "devicequota " + o.version + " " + platform,
		DocumentNamespace: "https://github.com/devicequota/devicequota/sbom/" + digest.Hex,
		CreationInfo:      creationInfo{Created: o.created.UTC().Format(time.RFC3339), Creators: []string{"Tool: devicequota-image"}},
		Packages:          []spdxPackage{module(product, info.Main.Path, o.version, "Apache-2.0"), module("SPDXRef-Package-go", "stdlib", strings.TrimPrefix(info.GoVersion, "go"), "BSD-3-Clause")},
		Relationships: []relationship{{"SPDXRef-DOCUMENT", "DESCRIBES", product},
			{product, "DEPENDS_ON", "SPDXRef-Package-go"}},
	}
	for _, m := range info.Deps {
		if m.Replace != nil {
			m = m.Replace
		}
		id := "SPDXRef-Package-" + identifier(m.Path)
		doc.Packages = append(doc.Packages, module(id, m.Path, m.Version, "NOASSERTION"))
		doc.Relationships = append(doc.Relationships, relationship{product, "DEPENDS_ON", id})
	}
	data, err := json.MarshalIndent(doc, "", "  ")
	if err != nil {
		return err
	}
	_, arch, _ := strings.Cut(platform, "/")
	return os.WriteFile(filepath.Join(o.out, "sbom-"+arch+".spdx.json"), append(data, '\n'), 0o644)
}

func module(id, path, version, licence string) spdxPackage {
	return spdxPackage{SPDXID: id, Name: path, VersionInfo: version, DownloadLocation: "NOASSERTION",
		LicenseConcluded: "NOASSERTION", LicenseDeclared: licence, CopyrightText: "NOASSERTION",
		ExternalRefs: []externalRef{{"PACKAGE-MANAGER", "purl", "pkg:golang/" + path + "@" + version}}}
}

// identifier replaces what SPDX does not allow in an ID.
func identifier(path string) string {
	return strings.Map(func(r rune) rune {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '.' || r == '-' {
			return r
		}
		return '-'
	}, path)
}
