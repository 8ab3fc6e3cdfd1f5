"""The platform of the AXDIMM paper (Kim et al., section 5), and its experiments."""
