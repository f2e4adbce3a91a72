// The table in the colder tier, inside the driver's JVM. Compiled by Janino like IcebergBridge.java; the same
// rules apply.
package lakewarden;

import com.fasterxml.jackson.databind.ObjectMapper;
import java.util.Map;
import org.apache.iceberg.HasTableOperations;
import org.apache.iceberg.Schema;
import org.apache.iceberg.Table;
import org.apache.iceberg.TableMetadata;
import org.apache.iceberg.TableMetadataParser;
import org.apache.iceberg.TableOperations;
import org.apache.iceberg.catalog.Catalog;
import org.apache.iceberg.catalog.Namespace;
import org.apache.iceberg.catalog.SupportsNamespaces;
import org.apache.iceberg.catalog.TableIdentifier;
import org.apache.iceberg.exceptions.AlreadyExistsException;

public final class IcebergCold {
  private static final ObjectMapper JSON = new ObjectMapper();

  /** Create an empty table with the live table's columns, at the catalog's default location. Does nothing if it exists. */
  public boolean make(Catalog catalog, String identJson, Table live, String propertiesJson) throws Exception {
    TableIdentifier ident = TableIdentifier.of((String[]) JSON.readValue(identJson, String[].class));
    if (catalog.tableExists(ident)) {
      return false;
    }
    makeNamespace(catalog, ident.namespace());
    Map properties = (Map) JSON.readValue(propertiesJson, Map.class);
    try {
      catalog.buildTable(ident, live.schema()).withPartitionSpec(live.spec()).withProperties(properties).create();
      return true;
    } catch (AlreadyExistsException other) {
      return false;
    }
  }

  private void makeNamespace(Catalog catalog, Namespace namespace) {
    if (!(catalog instanceof SupportsNamespaces)) {
      return;
    }
    SupportsNamespaces namespaces = (SupportsNamespaces) catalog;
    try {
      if (!namespaces.namespaceExists(namespace)) {
        namespaces.createNamespace(namespace);
      }
    } catch (AlreadyExistsException other) {
      return;
    }
  }

  /** Whether its catalog accepts a complete replacement of the metadata. */
  public boolean replaceable(Table table) {
    return !((HasTableOperations) table).operations().getClass().getName().contains(".rest.");
  }

  /** Replaces all of the table's metadata at once, if the metadata it was made from is still current. */
  public void replace(Table table, String baseLocation, String metadataJson) {
    TableOperations ops = ((HasTableOperations) table).operations();
    TableMetadata base = ops.refresh();
    if (!base.metadataFileLocation().equals(baseLocation)) {
      throw new org.apache.iceberg.exceptions.CommitFailedException(
          "the cold table was changed by another commit: its metadata is now " + base.metadataFileLocation(), new Object[0]);
    }
    ops.commit(base, TableMetadataParser.fromJson((String) null, metadataJson));
  }
}
